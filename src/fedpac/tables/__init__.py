"""The paper's tables and figures: what is in them, the runs they need, and the rows that those runs fill."""

from pathlib import Path

RESULTS = Path("results")  # where the runs of the paper's tables are, if nothing is said
