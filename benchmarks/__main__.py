"""python -m benchmarks [names] [--quick]: run the named benchmarks, or all, and write benchmarks/results/."""

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import common
from benchmarks.common import NAMES, Target, targets_table
from fedpac.errors import FedpacError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="a tenth of the clients: rough figures, not kept")
    chosen = parser.parse_args()
    if wrong := set(chosen.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(wrong))}; there are {', '.join(NAMES)}")
    if chosen.quick:
        common.RESULTS = Path(tempfile.mkdtemp())  # not to be taken for results
    targets: list[Target] = []
    for name in chosen.names or NAMES:
        print(f"== {name}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        targets += importlib.import_module(f"benchmarks.{name}").run(quick=chosen.quick)
        print(f"== {name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if targets:
        print(f"\n{targets_table(targets)}")


if __name__ == "__main__":
    try:
        main()
    except FedpacError as error:
        sys.exit(str(error))
