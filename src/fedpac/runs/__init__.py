"""Runs: carrying them out, and showing what came of them."""

from pathlib import Path

RESULTS = Path("results")  # where the runs of the paper's tables are, if nothing is said
