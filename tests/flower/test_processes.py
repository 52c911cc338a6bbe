"""Nobody waits for what a process that has failed was to do."""

import sys
import time

import pytest
from processes import running, until


def test_waiting_ends_with_the_process_that_fails(tmp_path):
    begun = time.monotonic()
    with (
        running([sys.executable, "-c", "import sys; sys.exit('no such thing')"], tmp_path, "broken"),
        pytest.raises(AssertionError, match=r"a round: a process ended with 1:\nno such thing"),
    ):
        until(lambda: False, 300, "a round")
    assert time.monotonic() - begun < 100
