"""Every code block of the documents: commands are run on tiny data where they can be, and parsed where they cannot.

A command of fedpac that is not run here must at least have the options that the command line has. A line that is
neither run, parsed nor listed below with the reason is an error.
"""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from torch import nn

import fedpac as library
from fedpac.cli import app
from fedpac.config import make_config
from fedpac.data.schema import Schema
from fedpac.methods import fedprox
from fedpac.testing.tiny import run_federation
from small_run import tiny

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *(DOCS / "methods").glob("*.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = typer.main.get_group(app).commands

NOT_RUN = {  # the first word of a line -> why
    "pip": "installs from the network; tests/test_packages.py installs the packages",
    "make": "what the tests themselves are run by",
    "ray": "needs a cluster; tests/cluster starts one",
    "python": "takes minutes: benchmarks and studies",
    "python3": "makes the environment that the tests run in",
    "ssh": "needs another machine",
    "ssh-keygen": "not a program of fedpac's",
    "sudo": "changes the machine",
}
UNDERSTOOD = {  # command -> why it is not run here
    "serve": "runs until its federation ends; tests/flower and tests/browser start it",
    "join": "runs until its federation ends; tests/flower and tests/browser start it",
    "watch": "runs until it is stopped; tests/report and tests/browser start it",
    "check": "tests/cli/test_check.py runs it",
}
ELSEWHERE = {  # page -> what runs its commands, or such commands, on files that they need
    "tutorial.md": "tests/test_packages.py",
    "own-method.md": "tests/cli/test_check.py",
    "own-data.md": "tests/data/test_own.py",
    "models.md": "tests/examples/test_hospitals.py",
    "privacy.md": "tests/mods/test_ckks.py",
    "federation.md": "tests/flower/test_faults.py",
}
PROGRAMS = ["README.md", "python-api.md", "newcomers.md"]  # pages whose Python can be run from top to bottom


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind in kinds]


def lines(page: Path) -> list[str]:
    text = "\n".join(blocks(page, "sh", "console", "")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def words(line: str) -> list[str]:
    """Without a prompt and settings of the environment before the command."""
    found = shlex.split(line, comments=True)
    while found and (found[0] in ("$", "nice") or re.fullmatch(r"[A-Z_]+=\S*", found[0])):
        found.pop(0)
    return found


def commands(page: Path) -> list[list[str]]:
    """The arguments of fedpac, for every line that is one of its commands."""
    found = [words(line) for line in lines(page)]
    return [line[1:] for line in found if line[:1] == ["fedpac"]]


def test_there_are_commands_to_try() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 50
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_line_is_a_command_that_exists(page: Path) -> None:
    """Files and folders that a page is about are no commands."""
    for line in lines(page):
        first = (words(line) or ["#"])[0]
        listed = re.match(r"[\w.-]+/\S+\s", f"{line} ") or first.startswith(("{", ":", "../")) or first in NOT_RUN
        if page.name == "index.md" or listed:
            continue
        assert first == "fedpac", f"{page.name}: {line}"
    for arguments in commands(page):
        name, *rest = arguments
        assert name in COMMANDS, f"{page.name}: fedpac {name}"
        COMMANDS[name].make_context(name, rest)  # an option that is not there is an error


def shrunk(arguments: list[str]) -> list[str] | None:
    """The same command on less: one round, one trial, data that are there. None if it cannot be run."""
    name = arguments[0]
    if name in UNDERSTOOD or "--download" in arguments:
        return None
    there = [word for word in arguments if word != "--live"]
    if "--dataset" in there:
        there[there.index("--dataset") + 1] = "digits"
    if name == "run":
        engine = "auto" if any("deadline" in word for word in there) else "serial"  # which cannot stop a late client
        less = ["--rounds", "1", "--engine", engine, "--no-figures", "--set", "data.samples=10"]
        return [*there, *less, "--set", "data.test_samples=10", *(["--seeds", "1"] if "--seeds" in there else [])]
    if name == "resume":
        return [*there, "--no-figures"]
    if name == "tune":
        return [*there, "--methods", "fedpac,ditto", "--trials", "1", "--rounds", "1"]
    if name == "reproduce":
        own = any(word.endswith(".toml") for word in there)
        return [*there, *(["--rounds", "1"] if own else ["--minutes", "0", "--out", "results", "--page", "page.md"])]
    return there


RUNNING = [page for page in PAGES if page.name not in ELSEWHERE and commands(page)]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_every_command_works(page: Path, fedpac, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        if named := re.match(r"# (\S+\.toml)\n", text):
            local = text.replace("fashion-mnist", "digits")
            (tmp_path / named[1]).write_text(local)
    (tmp_path / "experiment.toml").touch()
    for name in ("runs/fedpac", "runs/local", "runs/fedpac-digits-seed0"):
        tiny(tmp_path / name, method=name[5:].partition("-")[0])
    for arguments in commands(page):
        if (less := shrunk(arguments)) is None:
            continue
        out = Path(less[less.index("--out") + 1]) if "--out" in less else Path("runs/fedpac-digits-seed0")
        if less[0] == "run":
            shutil.rmtree(out, ignore_errors=True)  # of another block, which is about something else
        code, _, complaint = fedpac(*less)
        assert code == 0, f"fedpac {' '.join(arguments)}: {complaint}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_works(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = next(page for page in PAGES if page.name == name)
    rng = np.random.default_rng(0)

    def samples(n: int):
        return rng.normal(size=(n, 20)).astype("float32"), rng.integers(0, 3, n)

    known: dict[str, object] = {"fedpac": library}
    known |= dict(zip(("x_train", "y_train", "x_test", "y_test"), (*samples(12), *samples(6)), strict=True))
    known |= {"x": known["x_test"], "y": known["y_test"], "x_new": known["x_test"]}
    known["model"] = library.Classifier(body=nn.Sequential(nn.Linear(20, 8), nn.ReLU()), head=nn.Linear(8, 3))
    known["clients"] = clients = [(*samples(12), *samples(6)) for _ in range(4)]
    numbers = {  # for the block about a regression
        "model": library.Classifier(body=nn.Sequential(nn.Linear(20, 8), nn.ReLU()), head=nn.Linear(8, 1)),
        "clients": [(x, x[:, 0], z, z[:, 0]) for x, _, z, _ in clients],
    }
    for text in blocks(page, "python"):
        told = re.sub(r"rounds=\d+", "rounds=2", text.replace(", ...]", "] * 4")).replace('"rounds": 30', '"rounds": 1')
        exec(compile(told, name, "exec"), {**known, **numbers} if "classes=0" in told else known)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.name)
def test_every_config_is_one(page: Path) -> None:
    federation: dict[str, object] = {}  # a later block may show what is added
    for text in blocks(page, "toml"):
        values = tomllib.loads(text)
        if "federation" in values:
            federation |= values["federation"]
            values["federation"] = federation
        if "features" in values:
            Schema.model_validate(values)
        elif "settings" not in values:  # an experiment's, which test_every_command_works reads
            made = make_config({"method": "fedpac", **values})
            assert made.method["name"] == values.get("method", {"name": "fedpac"})["name"]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_every_program_is_python(page: Path) -> None:
    """Those that need more than the page shows, such as a server or a client, are only compiled."""
    for text in blocks(page, "python"):
        compile(text, page.name, "exec")


def test_the_method_that_is_shown_to_contributors_works() -> None:
    (text,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    known = {**vars(fedprox)}
    exec(text, known)
    ours, theirs = (run_federation(kind(mu=0.1)) for kind in (known["FedProx"], fedprox.FedProx))
    assert ours.accuracies() == theirs.accuracies()
    assert ours.bytes() == theirs.bytes()
