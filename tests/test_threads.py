"""Numbers do not depend on how many cores there are."""

import os
import subprocess
import sys

import pytest

WEIGHTS = """
import hashlib
import torch
from threadpoolctl import threadpool_info
from fedpac.collaboration.statistics import feature_statistics
from fedpac.collaboration.weights import combination_weights
from fedpac.threads import one_thread

def digest():
    return hashlib.md5(combination_weights(statistics, cutoff=0).numpy().tobytes()).hexdigest()

random = torch.Generator().manual_seed(0)
samples = [(torch.randn(30, 64, generator=random), torch.randint(10, (30,), generator=random)) for _ in range(150)]
statistics = [feature_statistics(z + i % 7, y, 10) for i, (z, y) in enumerate(samples)]
threads = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
with one_thread():
    print(max(threads), digest())
assert threads == [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
def test_the_servers_weights_are_the_same_on_one_core_and_on_two():
    shown = {}
    for cores in (1, 2):
        chosen = sorted(os.sched_getaffinity(0))[:cores]
        code = f"import os; os.sched_setaffinity(0, {chosen})\n{WEIGHTS}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        threads, shown[cores] = done.stdout.split()
        assert int(threads) == cores  # NumPy would have used them all
    assert shown[1] == shown[2]
