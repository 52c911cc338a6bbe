"""Runs by what they were trained on: only those on the same data may be set beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedpac.report.web.gains import Gains, gains
from fedpac.runs.run_data import RunData
from fedpac.runs.seeds import setting_title, together

ALONE = "local"  # the method without collaboration


@dataclass(frozen=True, eq=False)
class Experiment:
    """One method with one set of settings, over all its seeds."""

    name: str
    runs: list[RunData]

    @property
    def first(self) -> RunData:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.method


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that was run on one federation's data."""

    title: str
    experiments: list[Experiment]

    @property
    def first(self) -> RunData:
        return self.experiments[0].first

    @cached_property
    def alone(self) -> Experiment | None:
        """What each site reaches without the others."""
        return next((e for e in self.experiments if e.method == ALONE), None)

    def gains(self, experiment: Experiment) -> Gains | None:
        """Against Local-only, in the accuracy that the method's paper reports; None of numbers, which are no shares."""
        if self.alone is None or experiment.method == ALONE or self.first.metric != "accuracy":
            return None
        return gains(experiment.runs, self.alone.runs, experiment.first.shown)


def settings_of(runs: Sequence[RunData]) -> list[Setting]:
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(repr((_data(run), len(run.sizes), run.note, run.metric)), []).append(run)
    titles = [setting_title(same[:1]) for same in groups.values()]
    kept: list[Setting] = []
    for title, same in zip(titles, groups.values(), strict=True):
        if titles.count(title) > 1:
            alike = [other[0] for other, its in zip(groups.values(), titles, strict=True) if its == title]
            title += f"; {_own(same[0], alike)}"
        kept.append(Setting(title, [Experiment(name, its) for name, its in together(same).items()]))
    return kept


def _data(run: RunData) -> dict[str, object]:
    return {key: value for key, value in run.settings.items() if key.startswith(("data.", "federation."))}


def _own(run: RunData, alike: Sequence[RunData]) -> str:
    """What of its data is different from that of others with the same title."""
    keys = dict.fromkeys(key for other in alike for key in _data(other))
    differing = [key for key in keys if len({repr(_data(other).get(key)) for other in alike}) > 1]
    return ", ".join(f"{key.partition('.')[2]} {_data(run).get(key)}" for key in differing)
