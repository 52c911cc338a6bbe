"""The parent's side: contenders take turns (A B C A B C ...), figures are ratios within a turn.

So a change of clock or of other load meets all of them alike. Every figure is a median with its whole range.
"""

import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.contender import MARK
from fedpac.provenance import provenance

NAMES = ("rounds", "peers", "flute", "weights", "scale", "crowd", "startup", "profile", "before", "cluster", "flower")
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"

Answer = dict[str, Any]


class BenchmarkError(Exception):
    """A contender could not do its part."""


class Contender:
    """A child process that does one unit of work each time it is told to (see benchmarks.contender)."""

    def __init__(
        self, name: str, *arguments: str, python: Path | str = sys.executable, cwd: Path = ROOT, **env: str
    ) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (its complaints, shown if it fails)
        self.process = subprocess.Popen(
            [str(python), "-m", *arguments], cwd=cwd, env={**os.environ, **env}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip

    def answer(self) -> Answer:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                found: Answer = json.loads(line[len(MARK) :])
                return found
        code = self.process.wait()
        self.log.seek(0)
        raise BenchmarkError(f"'{self.name}' ended with code {code} and without an answer:\n{self.log.read()[-3000:]}")

    def go(self) -> Answer:
        """The answer to one more unit of work, with the CPU seconds that all processes of the contender spent on it."""
        assert self.process.stdin is not None
        before = cpu_seconds(self.process.pid)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self.answer()
        return {**answer, "cpu": cpu_seconds(self.process.pid) - before}

    def __enter__(self) -> Self:
        self.answer()  # ready
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def process_tree(pid: int) -> list[int]:
    """A process and all that descend from it, where /proc tells."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    tree = [pid]
    for found in tree:
        tree += parents.get(found, [])
    return tree


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its living descendants."""
    ticks = 0
    for member in process_tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def interleave(contenders: Sequence[Contender], turns: int, warm_up: int = 1) -> dict[str, list[Answer]]:
    """What each contender answered in each turn; the turns to warm up are not kept."""
    answers: dict[str, list[Answer]] = {c.name: [] for c in contenders}
    for turn in range(warm_up + turns):
        for contender in contenders:
            answer = contender.go()
            which = f"{turn - warm_up + 1}/{turns}" if turn >= warm_up else "warm-up"
            progress(f"  {which:7s} {contender.name:24s} {answer['seconds']:8.3f} s, CPU {answer['cpu']:8.3f} s")
            if turn >= warm_up:
                answers[contender.name].append(answer)
    return answers


@dataclass(frozen=True)
class Figure:
    """A median and its range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2, unit: str = "") -> str:
        return f"{self.median:.{digits}f}{unit} ({self.low:.{digits}f}-{self.high:.{digits}f})"

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


def column(answers: Mapping[str, list[Answer]], name: str, what: str = "seconds") -> list[float]:
    return [a[what] for a in answers[name]]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Figure:
    """How many times as long the first takes, turn by turn."""
    return Figure.of([s / f for s, f in zip(slow, fast, strict=True)])


@dataclass(frozen=True)
class Target:
    """What was promised for a figure, and whether its median keeps the promise."""

    what: str
    figure: Figure
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.figure.median >= self.limit if self.at_least else self.figure.median <= self.limit

    def row(self) -> list[str]:
        return [self.what, self.wanted, self.measured, "met" if self.met else "missed"]

    @property
    def wanted(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.limit:g}"

    @property
    def measured(self) -> str:
        if self.limit < 1e-3:
            return f"{self.figure.median:.1e}"
        return self.figure.text(3 if self.limit < 1 else 2)

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "at_least" if self.at_least else "at_most": self.limit, "met": self.met,
                **self.figure.to_json()}  # fmt: skip

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Target":
        at_least = "at_least" in values
        figure = Figure(values["median"], values["low"], values["high"])
        return cls(values["what"], figure, values["at_least" if at_least else "at_most"], at_least)


def targets_table(targets: Sequence[Target]) -> str:
    return table(["target", "wanted", "measured", ""], [t.row() for t in targets])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- result files --------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": model, "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}


def peer_versions() -> dict[str, str]:
    """The versions that the peers' environment holds; empty where there is none."""
    code = "from importlib.metadata import version as v; print(*(v(n) for n in ('flwr', 'pfl', 'ray', 'torch')))"
    if not PEERS_PYTHON.exists():
        return {}
    found = subprocess.run([str(PEERS_PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(("flwr", "pfl", "ray", "torch"), found, strict=True))


def folder_of(processor: str) -> Path:
    """Where this processor's results are: what was measured on one never takes the place of another's."""
    plain = re.sub(r"\(\w+\)", "", processor).lower()
    return RESULTS / re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def save(name: str, data: dict[str, Any], markdown: str, begun: dict[str, Any]) -> None:
    """<name>.json with all answers and where they come from, and <name>.md with the tables."""
    folder = folder_of(begun["processor"])
    folder.mkdir(parents=True, exist_ok=True)
    origin = {**provenance(), "command": f"python -m benchmarks {name}", "machine": begun}
    (folder / f"{name}.json").write_text(json.dumps({"provenance": origin, **data}, indent=1) + "\n")
    text = (
        f"**{begun['processor']}, {begun['cores']} cores**\n\n{markdown}\n\n"
        f"`{origin['command']}` at commit {origin['commit']}, torch {origin['versions']['torch']}, kernels "
        f"{origin['kernels']}, load before {begun['load_before']:.2f}. Medians, in brackets the range.\n"
    )
    (folder / f"{name}.md").write_text(text)
    print(f"\n{text}", flush=True)
