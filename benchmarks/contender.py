"""The child's side of an interleaved measurement: wait for the word, do one unit of work, say how long it took.

Needs nothing but the standard library, since the peers' children run in an environment of their own.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "@@ "  # before each answer, since peers print what they like


def say(**answer: Any) -> None:
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


def wait_for_go() -> bool:
    """True when the parent wants one more unit, False when it wants no more."""
    return sys.stdin.readline().strip() == "go"


def serve(unit: Callable[[], dict[str, Any]]) -> None:
    """Answer every 'go' with the seconds that unit() took and with what it returns."""
    say(ready=True)
    while wait_for_go():
        start = time.perf_counter()
        details = unit()
        say(seconds=time.perf_counter() - start, **details)
