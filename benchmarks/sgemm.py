"""A contender: what the machine can do at most. One single-threaded process per core multiplies 1024 x 1024 matrices,
all of them at once.   python -m benchmarks.sgemm [SECONDS]"""

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.contender import serve

SIZE = 1024
CORES = 2


def work(pipe: Connection, duration: float) -> None:
    torch.set_num_threads(1)
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    c = torch.empty(SIZE, SIZE)
    while pipe.recv():
        done, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < duration:
            torch.mm(a, b, out=c)
            done += 1
        gflop = done * 2 * SIZE**3 / 1e9
        pipe.send((gflop / (time.perf_counter() - start), gflop / (time.process_time() - cpu)))


def main() -> None:
    duration = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    pipes = []
    for _ in range(CORES):
        here, there = multiprocessing.Pipe()
        multiprocessing.Process(target=work, args=(there, duration), daemon=True).start()
        pipes.append(here)

    def unit() -> dict[str, Any]:
        for pipe in pipes:
            pipe.send(True)
        rates = [pipe.recv() for pipe in pipes]
        return {"gflops": sum(rate for rate, _ in rates), "gflops_per_core": sum(rate for _, rate in rates) / CORES}

    serve(unit)


if __name__ == "__main__":
    main()
