"""Which runs are seeds of one experiment, and what they are called."""

from collections.abc import Iterable, Sequence

from fedpac.runs.run_data import RunData

LONG = 40  # characters of a name that say what is different about a run


def together(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in the seed alone, under a name that tells them from the others; of each, those that count."""
    groups: dict[tuple[str, int], list[RunData]] = {}
    for run in runs:
        key, copy = repr(run.settings), 0
        while any(other.seed == run.seed for other in groups.get((key, copy), [])):
            copy += 1  # the same seed once more is no further seed: it may be of other code or another machine
        groups.setdefault((key, copy), []).append(run)
    firsts = [same[0] for same in groups.values()]
    return {
        _name(same[0], [run for run in firsts if run.title == same[0].title]): counting(same)
        for same in groups.values()
    }


def counting(runs: list[RunData]) -> list[RunData]:
    """The runs that make up an experiment's numbers: an early round of one says nothing beside finished ones."""
    return [run for run in runs if run.finished] or runs


def _name(run: RunData, alike: Sequence[RunData]) -> str:
    """The method; where it was run in several ways, what is this one's own, or its folder where that is no help."""
    if len(alike) == 1:
        return run.title
    keys = dict.fromkeys(key for other in alike for key in other.settings)
    differing = [key for key in keys if len({repr(other.settings.get(key)) for other in alike}) > 1]
    short = {key: key.rpartition(".")[2] for key in differing}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}

    def own(other: RunData) -> str:
        return ", ".join(f"{names[key]}={other.settings[key]}" for key in differing if key in other.settings)

    said = own(run)
    if len(said) > LONG or [own(other) for other in alike].count(said) > 1:
        tails = [["/".join(other.path.absolute().parts[-n:]) for other in alike] for n in range(1, 30)]
        said = next(tail for tail in tails if len(set(tail)) == len(tail))[alike.index(run)]
    return f"{run.title} ({said})" if said else run.title


def stand_in_mark(notes: Iterable[str]) -> str:
    """What follows a title wherever one of its runs is not on the published data."""
    return " (stand-in data)" if any(notes) else ""


def setting_title(runs: Sequence[RunData]) -> str:
    names = ", ".join(dict.fromkeys(f"{run.scenario}, {len(run.sizes)} clients" for run in runs))
    return names + stand_in_mark(run.note for run in runs)
