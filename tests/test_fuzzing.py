"""That the fuzzing harness sees what it is there to see."""

import os
import time

import numpy as np
import pytest

from fedpac.errors import DataError
from fuzzing import DAMAGE, damaged, fuzz

DATA = bytes(range(256)) * 4


def well_behaved(rng):
    if rng.random() < 0.5:
        raise DataError("refused")


def breaks(rng):
    raise KeyError("lost")


def exits(rng):
    raise SystemExit(0)


def crashes(rng):
    os.abort()


def hangs(rng):
    time.sleep(60)


def takes_long(rng):
    end = time.process_time() + 1.1
    while time.process_time() < end:
        pass


def fills_the_memory(rng):
    return np.ones(1 << 28)  # 2 GB


def test_what_was_accepted_and_refused_is_counted():
    tally = fuzz(well_behaved, 100)
    assert tally.accepted + tally.refused == 100
    assert 30 < tally.refused < 70


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (breaks, "case 0 of seed 7:\n(.|\n)*KeyError: 'lost'"),
        (exits, "SystemExit"),
        (crashes, r"case 0 of seed 7 ended the process \(exit code -6\)"),
        (hangs, "case 0 of seed 7 hangs, after 6 s"),
        (takes_long, "case 0 of seed 7 took 1.[1-9] s; allowed are 1"),
        (fills_the_memory, "MemoryError"),
    ],
)
def test_whatever_else_happens_fails_the_test_and_is_named(case, words):
    with pytest.raises(pytest.fail.Exception, match=words):
        fuzz(case, 3, seed=7, seconds=1)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_every_kind_of_damage_changes_the_data_and_takes_any(damage):
    text = b"{'shape': (3, 4)}" + DATA
    assert any(damage(text, np.random.default_rng(seed)) != text for seed in range(5))
    for short in (b"", b"7"):
        for seed in range(20):
            damage(short, np.random.default_rng(seed))


def test_damage_is_a_function_of_the_seed():
    assert damaged(DATA, np.random.default_rng(3)) == damaged(DATA, np.random.default_rng(3))
    assert len({damaged(DATA, np.random.default_rng(seed)) for seed in range(50)}) > 40
