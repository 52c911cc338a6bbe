"""Reads run folders into rows, and shows rows: in the terminal, as Markdown or as CSV.

Everything is computed from the folder's CSV files, so an unfinished run can be looked at too.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpac.config import read_config
from fedpac.errors import ConfigError, RunError
from fedpac.methods import find_method
from fedpac.methods.base import Which
from fedpac.runs.store import RunStore

if TYPE_CHECKING:
    from rich.table import Table

Floats: TypeAlias = NDArray[np.float64]
When: TypeAlias = Literal["final", "best"]
SPLITS: tuple[Which, Which] = ("received", "personal")
LONG = 40  # characters of a name that say what is different about a run


@dataclass(frozen=True)
class RunData:
    """One run as read from its folder."""

    path: Path
    config: dict[str, Any]
    title: str
    reported: Which
    note: str  # "stand-in: ..." where the numbers may not be set beside published ones
    clients: list[dict[str, str]]
    accuracy: dict[Which, dict[int, Floats]]  # split -> round -> accuracy of every client
    rounds: list[dict[str, str]]
    environment: dict[str, Any]

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def dataset(self) -> str:
        return str(self.config["data"]["dataset"])

    @property
    def scenario(self) -> str:
        return f"{self.dataset} {self.config['data']['scenario']}"

    @property
    def seed(self) -> int:
        return int(self.config["run"]["seed"])

    @property
    def last_round(self) -> int:
        return len(self.rounds)

    @property
    def finished(self) -> bool:
        return self.last_round >= int(self.config["run"]["rounds"])

    @property
    def sizes(self) -> Floats:
        return np.array([int(row["train"]) for row in self.clients], dtype=float)

    @property
    def groups(self) -> list[int | None]:
        return [int(row["group"]) if row["group"] else None for row in self.clients]

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """Training samples of each class (columns) for each client (rows)."""
        return np.array([[int(v) for k, v in row.items() if k.startswith("class_")] for row in self.clients])

    @cached_property
    def peer_weights(self) -> dict[int, Floats]:
        """Round -> matrix: row i holds the weights that client i gives to all clients."""
        n = len(self.clients)
        matrices: dict[int, Floats] = {}
        for row in RunStore(self.path).rows("weights.csv"):
            matrix = matrices.setdefault(int(row["round"]), np.zeros((n, n)))
            matrix[int(row["client"]), int(row["peer"])] = float(row["weight"])
        return matrices

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that a result depends on but the seed: 'method.lam', 'data.s', ..."""
        sections = {k: self.config[k] for k in ("method", "data", "training")}
        sections["run"] = {k: v for k, v in self.config["run"].items() if k in ("rounds", "participation")}
        flat = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
        return {**flat, "model": self.config["model"], "note": self.note}

    def seconds(self) -> float:
        return sum(float(row["seconds"]) for row in self.rounds)

    def total_bytes(self, way: Literal["up", "down"]) -> int:
        return sum(int(row[f"bytes_{way}"]) for row in self.rounds)

    def evaluated_round(self, which: Which, when: When) -> int:
        rounds = self.accuracy[which]
        return max(rounds) if when == "final" else max(rounds, key=lambda t: (rounds[t].mean(), -t))


def read_run(path: Path) -> RunData:
    """A run's folder, finished or not, with at least one evaluated round."""
    store = RunStore.open(path)
    config = read_config(path / "config.toml")
    environment = store.read_json("environment.json") if (path / "environment.json").exists() else {}
    clients = store.rows("clients.csv")
    gathered: dict[Which, dict[int, list[float]]] = {split: {} for split in SPLITS}
    try:
        for row in store.rows("metrics.csv"):
            which: Which = "received" if row["split"] == "received" else "personal"
            gathered[which].setdefault(int(row["round"]), []).append(float(row["accuracy"]))
        name = config["method"]["name"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a run: {error}") from None
    complete = {
        split: {t: np.array(values) for t, values in rounds.items() if len(values) == len(clients)}
        for split, rounds in gathered.items()
    }
    if not all(complete.values()):
        raise RunError(f"{path} has no evaluated round yet: continue it with 'fedpac resume {path}'")
    try:
        cls = find_method(name)
        title, reported = cls.title, cls.reported
    except (ConfigError, AttributeError):  # a method of the user's own that is not at hand here
        title, reported = name, "received"
    rounds = store.rows("rounds.csv")
    return RunData(
        path, config, title, reported, str(environment.get("note", "")), clients, complete, rounds, environment
    )


def read_runs(paths: Iterable[Path]) -> list[RunData]:
    """All runs; a folder that holds no run but has runs in it stands for them."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(p.parent for p in path.glob("[!.]*/config.toml"))
        found += [path] if (path / "config.toml").is_file() or not inside else inside
    return [read_run(path) for path in dict.fromkeys(found)]


def together(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in the seed alone, under a name that tells them from the others."""
    same: dict[str, list[RunData]] = {}
    for run in runs:
        same.setdefault(repr(run.settings), []).append(run)
    firsts = [group[0] for group in same.values()]
    return {_name(group[0], [run for run in firsts if run.title == group[0].title]): group for group in same.values()}


def _name(run: RunData, alike: Sequence[RunData]) -> str:
    """The method; where it was run in several ways, what is this one's own; where that is long, its folder."""
    if len(alike) == 1:
        return run.title
    keys = dict.fromkeys(key for other in alike for key in other.settings)
    differing = [key for key in keys if len({repr(other.settings.get(key)) for other in alike}) > 1]
    short = {key: key.rpartition(".")[2] for key in differing}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    own = ", ".join(f"{names[key]}={run.settings[key]}" for key in differing if key in run.settings)
    if len(own) > LONG:
        tails = [["/".join(other.path.absolute().parts[-n:]) for other in alike] for n in range(1, 30)]
        own = next(tail for tail in tails if len(set(tail)) == len(tail))[alike.index(run)]
    return f"{run.title} ({own})" if own else run.title


def stand_in_mark(notes: Iterable[str]) -> str:
    """What follows a title wherever one of its runs is not on the published data."""
    return " (stand-in data)" if any(notes) else ""


# --- one run: the summary -----------------------------------------------------------------------------------------


def describe(accuracies: Floats, sizes: Floats) -> dict[str, float]:
    """Mean and spread over clients. The plain mean counts every client equally, as the paper does."""
    values = np.sort(accuracies)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_decile": float(values[: max(1, len(values) // 10)].mean()),
        "weighted_mean": float(np.average(accuracies, weights=sizes)),
    }


def summarise(run: RunData) -> dict[str, Any]:
    results: dict[str, Any] = {
        which: {
            when: {"round": (t := run.evaluated_round(which, when)), **describe(run.accuracy[which][t], run.sizes)}
            for when in ("final", "best")
        }
        for which in SPLITS
    }
    return {
        "method": run.method,
        "title": run.title,
        "dataset": run.dataset,
        "scenario": run.scenario,
        "note": run.note,
        "clients": len(run.clients),
        "rounds": run.last_round,
        "seed": run.seed,
        "reported": run.reported,
        **results,
        "seconds": round(run.seconds(), 3),
        "bytes_down": run.total_bytes("down"),
        "bytes_up": run.total_bytes("up"),
    }


# --- many runs: rows ----------------------------------------------------------------------------------------------

COLUMNS: dict[str, str] = {
    "method": "method",
    "data": "data",
    "rounds": "rounds",
    "seeds": "seeds",
    "reported": "reported",
    "received": "received %",
    "received_best": "best %",
    "personal": "personal %",
    "personal_best": "best %",
    "worst": "worst tenth %",
    "seconds": "seconds",
    "up": "MB up",
    "down": "MB down",
}
SPREAD_NOTE = (
    "Final test accuracy, mean ± standard deviation over clients (over seeds where there are several). "
    "Received: before local training; personal: after it; ◂ marks the one that the method's paper reports. "
    "Worst tenth: the mean of that accuracy over the worst tenth of the clients. "
    "Seconds and MB are those of a whole run."
)


def compare(runs: Sequence[RunData]) -> list[dict[str, str]]:
    """One row for each experiment; runs that differ in the seed alone are put together."""
    if not runs:
        raise RunError("there are no runs to compare")
    return [_row(name, same) for name, same in together(runs).items()]


def _row(label: str, runs: list[RunData]) -> dict[str, str]:
    first = runs[0]
    row = {
        "method": label,
        "data": first.scenario + ("*" if first.note else ""),
        "rounds": "/".join(dict.fromkeys(_progress(run) for run in runs)),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "reported": first.reported,
    }
    for which in SPLITS:
        row[which] = _spread([_scores(run, which, "final") for run in runs])
        row[f"{which}_best"] = _spread([_scores(run, which, "best") for run in runs])
    worst = [describe(_scores(run, run.reported, "final"), run.sizes)["worst_decile"] for run in runs]
    row["worst"] = f"{100 * np.mean(worst):.1f}"
    row["seconds"] = f"{np.mean([run.seconds() for run in runs]):.1f}"
    row["up"] = f"{np.mean([run.total_bytes('up') for run in runs]) / 1e6:.1f}"
    row["down"] = f"{np.mean([run.total_bytes('down') for run in runs]) / 1e6:.1f}"
    return row


def _progress(run: RunData) -> str:
    return str(run.last_round) if run.finished else f"{run.last_round} of {run.config['run']['rounds']}"


def _scores(run: RunData, which: Which, when: When) -> Floats:
    return run.accuracy[which][run.evaluated_round(which, when)]


def _spread(runs: list[Floats]) -> str:
    """Over clients of the one run there is; else over runs, estimated as that of all seeds."""
    if len(runs) == 1:
        return f"{100 * runs[0].mean():.2f} ± {100 * runs[0].std():.2f}"
    means = np.array([accuracies.mean() for accuracies in runs])
    return f"{100 * means.mean():.2f} ± {100 * means.std(ddof=1):.2f}"


def notes(runs: Sequence[RunData]) -> list[str]:
    """What a reader of the table has to be told."""
    return [SPREAD_NOTE, *dict.fromkeys(f"* {run.dataset}: {run.note}" for run in runs if run.note)]


# --- showing ------------------------------------------------------------------------------------------------------


def rich_table(
    rows: Sequence[Mapping[str, str]], columns: Mapping[str, str], title: str | None = None, left: Sequence[str] = ()
) -> "Table":
    """For the terminal. Columns named in `left` are text, the others numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False)
    for key, header in columns.items():
        table.add_column(header, justify="left" if key in left else "right", no_wrap=key not in left)
    for row in rows:
        table.add_row(*(escape(row[key]) for key in columns))
    return table


def comparison_table(rows: Sequence[Mapping[str, str]]) -> "Table":
    """The rows of `compare` narrow enough for a terminal: the best below the final, what all share in the title."""
    shared = [key for key in ("data", "rounds", "seeds") if len({row[key] for row in rows}) == 1]
    shown = []
    for row in rows:
        short = dict(row)
        for which in SPLITS:
            mark = "◂" if row["reported"] == which else " "
            short[which] = f"{row[which]} {mark}\nbest {row[f'{which}_best'].split()[0]}  "
        shown.append({**short, "bytes": f"{row['up']} / {row['down']}"})
    columns = {key: COLUMNS[key] for key in ("method", "data", "rounds", "seeds") if key not in shared}
    columns |= {"received": "received %", "personal": "personal %", "worst": "worst\ntenth %", "seconds": "seconds"}
    columns |= {"bytes": "MB\nup / down"}
    title = ", ".join(f"{key} {rows[0][key]}" if key != "data" else rows[0][key] for key in shared)
    return rich_table(shown, columns, title=title or None, left=["method", "data"])


def markdown(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row[key].replace("|", "\\|") for key in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def csv_text(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[key] for key in columns] for row in rows)
    return text.getvalue()


def exact_rows(runs: Sequence[RunData]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Every run's numbers at full precision, for a spreadsheet."""
    rows = []
    for run in runs:
        summary = summarise(run)
        row = {k: str(v) for k, v in summary.items() if not isinstance(v, dict)} | {"folder": str(run.path)}
        for which in SPLITS:
            for when in ("final", "best"):
                row |= {f"{which}_{when}_{k}": repr(v) for k, v in summary[which][when].items()}
        rows.append(row)
    if not rows:
        raise RunError("there are no runs to compare")
    return rows, {key: key for key in rows[0]}
