"""Fills the tables of docs/beyond.md from the runs under results/, and draws docs/img/fedpac-plus.svg and .png.

python -m studies.beyond_page [FOLDER]       another folder for the figure

A difference is the mean over clients, who have the same test data in both runs, and over the seeds that both have; its
standard error is over clients, and the seeds count as independent.
"""

import csv
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fedpac.methods.base import Which
from fedpac.report.style import COLOURS, MARKERS, write_figure
from fedpac.runs.read import read_run
from fedpac.runs.run_data import RunData
from fedpac.tables.spec import shipped

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "beyond.md", ROOT / "results"
MARKS = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PLUS, STEADY, PLAIN, LAST = "fedpac-plus", "fedpac-plus-steady", "fedpac", 200
SETTINGS = {
    "cifar10-20": "CIFAR-10",
    "fashion-mnist-20": "Fashion-MNIST",
    "cifar10-20-n100": "CIFAR-10, 100 samples a client",
    "fashion-mnist-20-n100": "Fashion-MNIST, 100 samples a client",
    "cifar10-100": "CIFAR-10, 100 clients",
    "fashion-mnist-100": "Fashion-MNIST, 100 clients",
}
COLUMNS = 2  # of the figure
SHOWN = (30, 60, 100, 150, LAST)
PARTS = {
    "fedpac": "FedPAC",
    "fedpac-momentum": "server momentum alone",
    "fedpac-rate": "twice the body's rate alone",
    "fedpac-control": "control variates alone",
    "fedpac-growth": "growing alignment alone",
    "fedpac-plus-uncontrolled": "steady: momentum and rate",
    "fedpac-plus-steady": "steady, with control variates",
    "fedpac-plus-full": "steady, with control variates at full strength",
    "fedpac-plus": "all: FedPAC+",
}


# --- what was measured --------------------------------------------------------------------------------------------


@cache
def runs(setting: str, row: str) -> dict[int, RunData]:
    """By seed."""
    found = sorted((RESULTS / setting).glob(f"{row}-seed*"))
    return {int(folder.name.rpartition("-seed")[2]): read_run(folder) for folder in found}


def gap(
    setting: str, row: str, at: int, other: str, then: int, which: Which = "received", its: Which = "received"
) -> tuple[float, float, int] | None:
    """How many points the row in round `at` is ahead of the other in round `then`; its standard error; seeds."""
    ours, theirs = runs(setting, row), runs(setting, other)
    pairs = [
        100 * (ours[seed].accuracy[which][at] - theirs[seed].accuracy[its][then])
        for seed in ours.keys() & theirs.keys()
        if at in ours[seed].accuracy[which] and then in theirs[seed].accuracy[its]
    ]
    if not pairs:
        return None
    errors = [pair.std(ddof=1) / np.sqrt(len(pair)) for pair in pairs]
    return float(np.mean(pairs)), float(np.linalg.norm(errors) / len(errors)), len(pairs)


def means(setting: str, row: str, at: int, which: Which = "received") -> list[float]:
    """Of each seed that has come so far."""
    found = (run.accuracy[which] for run in runs(setting, row).values())
    return [float(100 * scores[at].mean()) for scores in found if at in scores]


# --- tables -------------------------------------------------------------------------------------------------------


def signed(found: tuple[float, float, int] | None) -> str:
    return "–" if found is None else f"{found[0]:+.2f} ± {found[1]:.2f}"


def written(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)])


def spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def shown(setting: str) -> tuple[str, str]:
    """The row of FedPAC+, the earlier version where this one has been run on fewer seeds, and the setting's title."""
    old = len(means(setting, PLUS, LAST)) < len(means(setting, STEADY, LAST))
    return (STEADY, SETTINGS[setting] + ", steady") if old else (PLUS, SETTINGS[setting])


def common(setting: str, row: str, t: int, which: Which = "received") -> tuple[float, float]:
    """The row and FedPAC in that round: the mean over the seeds that both have there."""
    ours, theirs = (runs(setting, name) for name in (row, PLAIN))
    both = [(ours[seed].accuracy[which], theirs[seed].accuracy[which]) for seed in ours.keys() & theirs.keys()]
    pairs = [(mine[t].mean(), its[t].mean()) for mine, its in both if t in mine and t in its]
    first, second = 100 * np.mean(pairs, 0)
    return float(first), float(second)


def reached(setting: str, row: str = PLUS) -> int | None:
    """The first evaluated round in which the row has FedPAC's accuracy of the last one."""
    level = common(setting, row, LAST)[1]
    return next((t for t in leads(setting, row) if common(setting, row, t)[0] >= level), None)


def leads(setting: str, row: str = PLUS) -> dict[int, float]:
    """How far it is ahead of FedPAC in each evaluated round."""
    ours, theirs = (next(iter(runs(setting, name).values())).accuracy["received"] for name in (row, PLAIN))
    return {t: found[0] for t in sorted(ours.keys() & theirs.keys()) if (found := gap(setting, row, t, PLAIN, t))}


def overview() -> str:
    """How FedPAC+ stands beside FedPAC, a line for each setting: the mean over the seeds that both have."""
    rows = []
    for setting in SETTINGS:
        row, title = shown(setting)
        lead = gap(setting, row, LAST, PLAIN, LAST)
        if lead is None:
            continue
        ours, theirs = common(setting, row, LAST)
        ahead = leads(setting, row)
        behind = [gain for gain in ahead.values() if gain < 0]
        losses = f"{len(behind)} of {len(ahead)}" + (f", by {-min(behind):.2f} at most" if behind else "")
        after = gap(setting, row, LAST, PLAIN, LAST, "personal", "personal")
        rows.append([
            title, str(lead[2]), f"{theirs:.2f}", str(reached(setting, row) or "–"), f"{ours:.2f}", signed(lead),
            losses, signed(after),
        ])  # fmt: skip
    columns = [
        "", "seeds", "FedPAC, round 200", "FedPAC+ reaches it in round", "FedPAC+, round 200", "lead",
        "evaluated rounds behind", "lead after local training",
    ]  # fmt: skip
    return written(columns, rows)


def progress() -> str:
    """FedPAC+ and FedPAC, round by round."""
    rows = []
    for setting in SETTINGS:
        row, title = shown(setting)
        for t in SHOWN:
            ahead, final = gap(setting, row, t, PLAIN, t), gap(setting, row, t, PLAIN, LAST)
            if ahead is not None:
                values = means(setting, row, t)
                rows.append([title, str(ahead[2]), str(t), spread(values), signed(ahead), signed(final)])
    columns = ["", "seeds", "round", "FedPAC+", "minus FedPAC in the same round", "minus FedPAC in round 200"]
    return written(columns, rows)


def versions() -> str:
    """FedPAC+ beside its steady version, where both have been run to the end."""
    rows = []
    for setting, title in SETTINGS.items():
        if (last := gap(setting, PLUS, LAST, STEADY, LAST)) is None:
            continue
        cells = [signed(gap(setting, PLUS, t, STEADY, t)) for t in SHOWN]
        after = signed(gap(setting, PLUS, LAST, STEADY, LAST, "personal", "personal"))
        rows.append([title, str(last[2]), *cells, after])
    return written(["", "seeds", *(f"round {t}" for t in SHOWN), f"round {LAST}, after local training"], rows)


def parts() -> str:
    """Each change alone with 100 samples a client, then several together."""
    setting = "fashion-mnist-20-n100"
    rows = [
        [
            title,
            *(f"{100 * runs(setting, row)[0].accuracy['received'][t].mean():.2f}" for t in (30, 100, LAST)),
            signed(_first(setting, row)),
        ]
        for row, title in PARTS.items()
        if 0 in runs(setting, row) and LAST in runs(setting, row)[0].accuracy["received"]
    ]
    return written(["", "round 30", "round 100", "round 200", "minus FedPAC, round 200"], rows)


def _first(setting: str, row: str) -> tuple[float, float, int] | None:
    """With seed 0 alone, which all of them have."""
    if row == PLAIN:
        return None
    ours, theirs = (runs(setting, name)[0].accuracy["received"][LAST] for name in (row, PLAIN))
    difference = 100 * (ours - theirs)
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference))), 1


def records(study: str) -> list[dict[str, str]]:
    lines = (RESULTS / f"{study}.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def changes() -> str:
    """What else was changed in FedPAC: the mean over seeds, which count as independent."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in records("fedpac-changes"):
        numbers = (float(row[column]) for column in ("received", "less FedPAC", "its error"))
        found.setdefault(row["trial"], []).append(tuple(numbers))  # type: ignore[arg-type]
    rows = []
    for trial, seeds in found.items():
        received, ahead, errors = map(np.array, zip(*seeds, strict=True))
        difference = (float(ahead.mean()), float(np.linalg.norm(errors) / len(errors)), len(seeds))
        rows.append(
            [trial, str(len(seeds)), f"{received.mean():.2f}", signed(None if trial == "FedPAC" else difference)]
        )
    return written(["change", "seeds", "round 100", "minus FedPAC"], rows)


def first_rounds() -> str:
    """The first rounds with and without the warm-up: the mean over seeds that no table reports."""
    found: dict[str, list[list[float]]] = {}
    rounds = (1, 2, 3, 4, 5, 8, 12)
    for row in records("first-rounds"):
        found.setdefault(row["trial"], []).append([float(row[f"round {t}"]) for t in rounds])
    rows = [[trial, *(f"{value:.1f}" for value in np.mean(seeds, 0))] for trial, seeds in found.items()]
    return written(["", *(f"round {t}" for t in rounds)], rows)


def trials() -> str:
    """What was tried on a seed that no table reports."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for row in records("fedpac-plus-trials"):
        found.setdefault((row["trial"], row["change"]), {})[int(row["round"])] = row["received"]
    rounds = (20, 40, 60, 80, 100)
    rows = [[name, change, *(by.get(t, "") for t in rounds)] for (name, change), by in found.items()]
    return written(["trial", "what it adds", *(f"round {t}" for t in rounds)], rows)


def late(setting: str) -> str:
    """What became of late rounds on a seed that no table reports."""
    rounds = (20, 50, 80, 100, 120, 150, 180, LAST)
    rows = [
        [trial["trial"], *(f"{float(value):.2f}" if (value := trial[f"round {t}"]) else "" for t in rounds)]
        for trial in records("late-rounds")
        if trial["setting"] == setting
    ]
    return written(["", *(f"round {t}" for t in rounds)], rows)


def fair(setting: str) -> str:
    """The last round of every method that has come that far, best first."""
    table, folder = shipped()["fair"], setting.replace(",", "-")
    last = table.config(setting, PLUS, 0).run.rounds
    best = PLUS if means(folder, PLUS, last) else PLAIN  # the row that the others are set beside
    rows = []
    for row in table.methods:
        run, which = table.run_of(row), table.accuracy_of(row)
        values = means(folder, run, last, which)
        if values:
            behind = None if row == best else gap(folder, run, last, best, last, which)
            some = next(iter(runs(folder, run).values()))
            traffic = (some.bytes_up + some.bytes_down) / some.last_round / 1e6
            name = f"**{table.title_of(row)}**" if row in (PLUS, PLAIN) else table.title_of(row)
            rows.append(
                (np.mean(values), [name, which, str(len(values)), spread(values), signed(behind), f"{traffic:.0f}"])
            )
    rows.sort(key=lambda pair: -pair[0])
    columns = ["method", "accuracy of", "seeds", f"round {last}", f"minus {table.title_of(best)}", "MB a round"]
    return written(columns, [row for _, row in rows])


def chosen(study: str) -> str:
    """Which steps suit a method, by the accuracy on held-out training data: the mean over seeds."""
    found: dict[str, list[float]] = {}
    for trial in records(study):
        found.setdefault(trial["row"], []).append(float(trial["validation"]))
    table, rows = shipped()["fair"], []
    for row in found:
        if f"{row}-fast" in found:
            plain, fast = np.mean(found[row]), np.mean(found[f"{row}-fast"])
            diverged = np.isnan([plain, fast])
            better = "larger steps" if fast > plain or (diverged == [True, False]).all() else "as its authors have it"
            values = (f"{value:.2f}" if np.isfinite(value) else "diverged" for value in (plain, fast))
            rows.append([table.title_of(row), *values, better])
    return written(["method", "as its authors have it", "larger steps", "chosen"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "overview": overview,
    "progress": progress,
    "versions": versions,
    "parts": parts,
    "first_rounds": first_rounds,
    "trials": trials,
    "changes": changes,
    "late_few": partial(late, "few"),
    "late_many": partial(late, "many"),
    "chosen": partial(chosen, "fair-settings"),
    "chosen_cifar10": partial(chosen, "fair-settings-cifar10"),
    "fair": partial(fair, "fashion-mnist,20,n100"),
    "fair_cifar10_scarce": partial(fair, "cifar10,20,n100"),
    "fair_fashion": partial(fair, "fashion-mnist,20"),
    "fair_cifar10": partial(fair, "cifar10,20"),
    "fair_dirichlet": partial(fair, "fashion-mnist,20,dir01"),
}


# --- the figure ---------------------------------------------------------------------------------------------------


def curves() -> Figure:
    """Both methods over rounds: the mean over seeds, and from the lowest to the highest seed."""
    there = {setting: shown(setting) for setting in SETTINGS if gap(setting, shown(setting)[0], LAST, PLAIN, LAST)}
    lines = -(-len(there) // COLUMNS)
    drawn, axes = plt.subplots(lines, COLUMNS, figsize=(4.4 * COLUMNS, 3.6 * lines), squeeze=False)
    for axis in axes.flat[len(there) :]:
        axis.set_axis_off()
    for axis, (setting, (plus, title)) in zip(axes.flat, there.items(), strict=False):
        for row, name, colour, marker in zip((plus, PLAIN), ("FedPAC+", "FedPAC"), COLOURS, MARKERS, strict=False):
            seeds = [run.accuracy["received"] for run in runs(setting, row).values()]
            if not seeds:
                continue
            common = sorted(t for t in set.intersection(*map(set, seeds)) if t % 10 == 0)
            values = np.array([[100 * scores[t].mean() for t in common] for scores in seeds])
            label = f"{name}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
            axis.plot(common, values.mean(0), color=colour, marker=marker, markevery=0.2, label=label)
            axis.fill_between(common, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        level = means(setting, PLAIN, LAST)
        axis.axhline(float(np.mean(level)), color="#7F7F7F", linestyle=":", linewidth=1.2)
        axis.set(title=title, xlabel="round", ylim=(np.mean(level) - 7.5, np.mean(level) + 3.5), xlim=(0, LAST))
        axis.legend(loc="lower right")
    for line in axes:
        line[0].set_ylabel("received accuracy (%)")
    drawn.tight_layout()
    return drawn


def filled(page: str) -> str:
    return MARKS.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))
    write_figure(Path(sys.argv[1] if len(sys.argv) > 1 else PAGE.parent / "img") / "fedpac-plus", curves)


if __name__ == "__main__":
    main()
