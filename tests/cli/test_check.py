"""`fedpac check`, as a user types it in a folder with a module: the example passes, and what is wrong is named."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMMAND = str(Path(sys.executable).with_name("fedpac"))
WRONG = '''
from typing import Any, ClassVar

import torch

from fedpac import FedAvg, Message


class Mine(FedAvg):
    """FedAvg with a mistake."""

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"


class ChangesItsMessage(Mine):
    def fit(self, client, w, down):
        for tensor in down.weights("w").values():
            tensor.mul_(0.5)
        return super().fit(client, w, down)


class StoresOnItself(Mine):
    def fit(self, client, w, down):
        self.last = w
        return super().fit(client, w, down)


class StoresOnItsClass(Mine):
    seen: ClassVar[list[int]] = []

    def fit(self, client, w, down):
        self.seen.append(client.id)
        return super().fit(client, {n: t + 0.01 * len(self.seen) for n, t in w.items()}, down)


class UnpacksWrong(Mine):
    def fit(self, client, w, down):
        return super().fit(client, {"weights": w["body"]}, down)


class DescribesSomethingElse(Mine):
    def replies(self, server, client, down):
        return {"weights": {}}


class SendsSamples(Mine):
    def local(self, client, down):
        return Message(**super().local(client, down), x=client.train_set[0])

    def replies(self, server, client, down):
        return None


class DrawsFromTorch(Mine):
    def fit(self, client, w, down):
        return super().fit(client, {n: t + 0.01 * torch.randn(()) if t.dim() else t for n, t in w.items()}, down)


looks = []


class RemembersLooking(Mine):
    def received(self, client, down):
        looks.append(client.id)
        return super().received(client, down)

    def fit(self, client, w, down):
        return super().fit(client, {name: tensor + 0.01 * len(looks) for name, tensor in w.items()}, down)


class ReadsWhatItOnlySums(Mine):
    def merge(self, server, replies):
        names, all_of_them = server.task.initial, replies.values()
        server.state["w"] = {name: sum(up.weights("w")[name] for up in all_of_them) / len(replies) for name in names}


class CondensesWrong(Mine):
    def condense(self, replies):
        first = min(replies)
        return {first: replies[first]}


class LearnsNothing(Mine):
    def fit(self, client, w, down):
        return w
'''


def checks(text: str) -> dict[str, str]:
    """check -> result, from the command's lines."""
    return {
        name.strip(): result
        for result, name in re.findall(r"^(passed|failed|not reached) +(.+?)(?:  .*)?$", text, re.MULTILINE)
    }


def test_the_example_passes(tmp_path):
    """With the installed command, in another process, where nothing of this test is known."""
    shutil.copy(ROOT / "examples" / "own_method.py", tmp_path)
    shown = subprocess.run(
        [COMMAND, "check", "own_method:Blend", "--set", "mu=0.1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
    found = checks(shown.stdout)
    assert len(found) == 25
    assert set(found.values()) == {"passed"}
    assert "Blend: 25 of 25 checks passed" in shown.stdout


def test_the_example_runs_on_every_engine(tmp_path):
    """The paper's network on digits, as the example's first lines say."""
    shutil.copy(ROOT / "examples" / "own_method.py", tmp_path)
    for engine in ("serial", "process", "auto"):
        command = [COMMAND, "run", "--method", "own_method:Blend", "--dataset", "digits", "--clients", "4"]
        command += ["--rounds", "2", "--set", "data.samples=20", "--set", "method.mu=0.1", "--no-figures"]
        shown = subprocess.run(
            [*command, "--engine", engine, "--out", engine], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert shown.returncode == 0, shown.stderr
    metrics = {engine: (tmp_path / engine / "metrics.csv").read_bytes() for engine in ("serial", "process", "auto")}
    assert metrics["serial"] == metrics["process"] == metrics["auto"]


@pytest.mark.parametrize(
    ("name", "failed", "text"),
    [
        ("ChangesItsMessage", "nothing changed in place", r"local\(\) changes the message it gets"),
        ("StoresOnItself", "nothing stored on the method", "it sets 'last' on itself"),
        ("StoresOnItsClass", "nothing stored on the method", "a run changes seen of the method"),
        ("UnpacksWrong", "a plain run", r"client \d, round 1: KeyError: 'body' \(line {line} of .*wrong.py\)"),
        ("DescribesSomethingElse", "replies fit their description", "'weights' is missing from the reply"),
        ("SendsSamples", "messages hold no samples", r"client \d in round 1 holds a training sample in 'x'"),
        ("DrawsFromTorch", "batch norm and dropout", r"another global seed .* round 1: client 0's .* loss is"),
        ("RemembersLooking", "looking changes nothing", "scores depend on earlier evaluations"),
        ("ReadsWhatItOnlySums", "sums suffice", r"TypeError: 'Sealed' object is not subscriptable \(line {line} of"),
        ("CondensesWrong", "condensed replies", "the server's 'w' is not that of all replies"),
        ("LearnsNothing", "training helps", r"its received models are right in \d+% of all cases"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fedpac, tmp_path, monkeypatch, name, failed, text):
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    importlib.invalidate_caches()
    code, shown, complaint = fedpac("check", f"wrong:{name}")
    assert code == 1
    assert checks(shown)[failed] == "failed"
    said = re.search(rf"^{re.escape(failed)}\n +found: +(.+)\n +expected: +\S.+$", shown, re.MULTILINE)
    assert said, shown
    assert re.search(text.replace("{line}", str(line_of_the_mistake(name))), said[1]), said[1]
    assert "Traceback" not in shown + complaint


def line_of_the_mistake(name: str) -> int:
    """The last line of that class."""
    before = WRONG[: WRONG.index(f"class {name}")]
    own = WRONG[len(before) :].split("\n\n\n")[0]
    return (before + own).count("\n") + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedpax"], "Did you mean 'fedpa"),
        (["json:dumps"], "not a subclass of fedpac.Method"),
        (["fedprox", "--set", "nu=1"], "there is no setting 'nu'. Did you mean 'mu'?"),
        (["fedprox", "--set", "mu=-1"], "mu = -1"),
        (["fedprox", "--set", "mu"], "'mu' is not of the form"),
    ],
)
def test_mistakes_are_one_message(fedpac, arguments, message):
    code, shown, complaint = fedpac("check", *arguments)
    assert (code, shown) == (1, "")
    assert message in complaint
    assert "Traceback" not in complaint
