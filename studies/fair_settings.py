"""Do larger steps suit a method? Both rows that a method has in the fair table, compared on validation data.

    python -m studies.fair_settings results/fair-settings.csv runs/fair [MOST [SETTING]]

Each rival that averages has two trials, as its authors have it and with larger steps, in one of the table's settings
(fashion-mnist,20,n100 if none is named): a fifth of each client's samples is held out, 100 rounds, seeds 10 to 12,
which no table reports. Written is the accuracy on the held-out data of the model that the method reports, the mean
over clients. Started again, it goes on with the rows that are missing, at most MOST of them.
"""

import sys
from pathlib import Path

from studies.rows import fill

from fedpac.config import make_config
from fedpac.config_values import changed
from fedpac.errors import RunError, TrainingError
from fedpac.runs.execute import advance
from fedpac.runs.folder import RunStore
from fedpac.tables.spec import shipped

SEEDS, ROUNDS = (10, 11, 12), 100
FAIR = shipped()["fair"]
PAIRED = [row.removesuffix("-fast") for row in FAIR.methods if row.endswith("-fast")]


def validated(folder: Path, setting: str, row: str, seed: int) -> float:
    """NaN where training diverges, which counts against the budget like any other trial."""
    config = FAIR.config(setting, row, seed).model_dump(mode="json", exclude_none=True)
    run = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "engine": "serial"}
    config = changed({**config, "run": {**config["run"], **run}}, "data.validation_share", 0.2)
    try:
        advance(make_config(config), folder)
    except TrainingError:
        return float("nan")
    except RunError as error:  # a reply far too large is refused before it is infinite
        if "diverged" not in str(error):
            raise
        return float("nan")
    summary = RunStore(folder).read_json("summary.json")
    return 100 * float(summary[FAIR.accuracy_of(row)]["selected"]["value"])


if __name__ == "__main__":
    table, runs = Path(sys.argv[1]), Path(sys.argv[2])
    setting = sys.argv[4] if len(sys.argv) > 4 else "fashion-mnist,20,n100"
    cells = [(row, seed) for seed in SEEDS for name in PAIRED for row in (name, f"{name}-fast")]

    def measure(cell: tuple[str, int]) -> tuple[float]:
        row, seed = cell
        return (validated(runs / setting.replace(",", "-") / f"{FAIR.run_of(row)}-seed{seed}", setting, row, seed),)

    most = int(sys.argv[3]) if len(sys.argv) > 3 else len(cells)
    fill(table, ("row", "seed", "validation"), cells, measure, most, "seeds 10 to 12")
