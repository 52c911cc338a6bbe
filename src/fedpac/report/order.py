"""In how many of the paper's comparisons FedPAC and a rival stand in the paper's order."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedpac.tables.rows import FilledRow, FilledTable, Ground, stand_in

OURS = "fedpac"  # the row that all others are compared with


@dataclass(frozen=True)
class Comparison:
    """FedPAC and one rival in one setting, both in their last round, on the seeds they share."""

    rival: str
    setting: str
    paper: float  # by how many points FedPAC leads there
    lead: float | None  # the same in our runs; None where one of the two has not been run to the end

    @property
    def agrees(self) -> bool:
        return self.lead is not None and self.lead * self.paper > 0


def comparisons(tables: Sequence[FilledTable]) -> list[Comparison]:
    """Each of the paper's comparisons once, also where several tables show it. Stand-in data are not the paper's."""
    found: dict[tuple[str, str], Comparison] = {}
    for table in tables:
        for key, rows in table.rows.items():
            ours = next((row for row in rows if row.row == OURS and row.paper is not None), None)
            if ours is None or stand_in(rows):
                continue
            for rival in rows:
                if rival is not ours and rival.paper is not None and rival.method != OURS:
                    found.setdefault((rival.title, key), _compared(ours, rival, table))
    return list(found.values())


def _compared(ours: FilledRow, rival: FilledRow, table: FilledTable) -> Comparison:
    assert ours.paper is not None
    assert rival.paper is not None
    lead = None
    if all(row.runs and row.finished for row in (ours, rival)):
        shared = Ground.of([ours, rival])
        lead = float(shared.of_row(ours).mean() - shared.of_row(rival).mean())
    title = table.experiment.settings[rival.setting].title
    return Comparison(rival.title, title, ours.paper - rival.paper, lead)


def order_table(tables: Sequence[FilledTable]) -> str:
    """Markdown: a line for each rival, the total first; empty where there is nothing to compare."""
    every = comparisons(tables)
    if not any(one.lead is not None for one in every):
        return ""
    rivals = list(dict.fromkeys(one.rival for one in every))
    lines = [_line(f"FedPAC and {rival}", [one for one in every if one.rival == rival]) for rival in rivals]
    head = "| the order of | in the paper | run here | the paper's order | another order in (our lead, the paper's) |"
    return "\n".join([
        "In how many of the paper's comparisons FedPAC and a rival stand in the paper's order. They are compared in "
        "the last round, on the seeds they share; stand-in data do not count.\n",
        head, "|---|---|---|---|---|", _line("**FedPAC and all rivals**", every, named=False), *lines, "",
    ])  # fmt: skip


def _line(title: str, compared: Sequence[Comparison], named: bool = True) -> str:
    run = [one for one in compared if one.lead is not None]
    other = [f"{one.setting} ({one.lead:+.2f}, {one.paper:+.2f})" for one in run if not one.agrees]
    told = "; ".join(other) if named else str(len(other))
    return f"| {title} | {len(compared)} | {len(run)} | {len(run) - len(other)} | {told} |"
