"""Files that were made to do harm are refused within seconds and 1 GB, and the error says what is wrong."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedpac.errors import DataError
from fuzzing import fuzz
from hostile import HOSTILE


def read(name: str, folder: Path, rng: np.random.Generator) -> None:
    reader, make, words = HOSTILE[name]
    with pytest.raises(DataError) as caught:
        reader(folder, make())
    assert words in str(caught.value)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name, tmp_path):
    assert fuzz(partial(read, name, tmp_path), cases=1).accepted == 1
