"""The command line: what it prints, what it writes and how it fails."""

import contextlib
import csv
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpac.cli.app import on_interrupt

SMALL = [
    "--dataset", "digits", "--clients", "4", "--rounds", "2", "--engine", "serial", "--no-figures",
    "--set", "model=logistic", "--set", "training.epochs=1",
    "--set", "data.samples=10", "--set", "data.test_samples=10",
]  # fmt: skip


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys, fedpac.cli; assert not {'torch', 'matplotlib', 'pydantic', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "command", ["run", "resume", "demo", "compare", "methods", "check", "data", "predict", "export"]
)
def test_every_command_has_help_with_an_example(fedpac, command):
    code, text, _ = fedpac(command, "--help")
    assert code == 0
    assert f"fedpac {command}" in re.sub(r"[│\s]+", " ", text).split("Example", 1)[1]


def test_every_argument_and_option_is_explained():
    import typer

    import fedpac.cli  # noqa: F401  (registers the commands)
    from fedpac.cli.app import app

    for name, command in typer.main.get_command(app).commands.items():
        assert [p.name for p in command.params if not p.hidden and not (p.help or "").endswith(".")] == [], name


@pytest.mark.parametrize("engine", ["serial", "process"])
def test_a_profile_is_shown_and_written_and_changes_nothing(fedpac, tmp_path, engine):
    assert "where the time went" not in fedpac("run", *SMALL, "--out", "plain")[1]
    assert not Path("plain/profile.csv").exists()
    code, text, complaint = fedpac("run", *SMALL, "--engine", engine, "--out", "profiled", "--profile")
    assert (code, complaint) == (0, "")
    assert Path("profiled/metrics.csv").read_bytes() == Path("plain/metrics.csv").read_bytes()
    assert "where the time went" in text
    with Path("profiled/profile.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["round"] for row in rows} == {"1", "2"}
    assert {"server/disk", "server/merging/combination weights", "clients/features", "clients/head epochs"} <= {
        row["span"] for row in rows
    }
    lines = [line.split("│") for line in text.split("where the time went")[1].splitlines() if line.count("│") == 3]
    roots = [line for line in lines if not line[0].startswith("   ")]
    assert [line[0].strip() for line in roots] == (
        ["server", "clients"] if engine == "serial" else ["server", "exchange", "clients"]
    )
    for root in roots:
        written = sum(float(row["seconds"]) for row in rows if row["span"].split("/")[0] == root[0].strip())
        assert float(root[1]) == pytest.approx(written, abs=0.006)
        assert float(root[3]) == 100


def test_run_resume_compare(fedpac, tmp_path):
    code, text, complaint = fedpac("run", "--method", "fedpac", *SMALL)
    assert (code, complaint) == (0, "")
    assert "round 2/2  received" in text
    assert "mean of the worst tenth" in text
    assert (tmp_path / "runs/fedpac-digits-seed0/summary.json").exists()
    assert fedpac("run", "--method", "fedpac", *SMALL)[0] == 0
    assert (tmp_path / "runs/fedpac-digits-seed0-2/summary.json").exists()
    assert fedpac("run", "--method", "fedavg", "--out", "runs/avg", *SMALL)[0] == 0
    code, text, _ = fedpac("resume", "runs/avg")
    assert code == 0
    assert "is finished" in text

    code, text, _ = fedpac("compare", "runs", "--out", "comparison", "--csv")
    assert code == 0
    assert "FedPAC" in text
    assert "FedAvg" in text
    assert {p.name for p in Path("comparison").iterdir()} == {
        "table.md", "table.csv", "accuracy.png", "accuracy.svg", "clients.png", "clients.svg",
    }  # fmt: skip
    code, text, _ = fedpac("compare", "runs/avg", "--csv")
    assert text.startswith("method,title,dataset")


def test_what_changes_over_the_rounds_from_the_command_line(fedpac, tmp_path):
    """The paper's network, for FedPAC+ and for a method with a server optimizer; a resumed run is the whole one."""
    turns = ("method.warmup=10", "method.falls_from=2", "method.growth=3", "method.growth_rounds=2")
    for name, *flags in (
        ("fedpac-plus", *(word for setting in turns for word in ("--set", setting))),
        ("ditto", "--set", "server.optimizer=momentum", "--set", "server.warmup=10"),
    ):
        run = ["run", "--method", name, "--dataset", "digits", "--clients", 4, "--no-figures", *flags]
        for folder, rounds in (("whole", 3), ("begun", 2)):
            code, _, err = fedpac(*run, "--rounds", rounds, "--out", f"{name}-{folder}")
            assert code == 0, err
        assert fedpac("resume", f"{name}-begun", "--rounds", 3)[0] == 0
        whole, begun = ((tmp_path / f"{name}-{folder}" / "metrics.csv") for folder in ("whole", "begun"))
        last = [[line for line in file.read_text().splitlines() if line.startswith("3,")] for file in (whole, begun)]
        assert last[0] == last[1] != []
    assert "server.warmup needs" in fedpac("run", "--dataset", "digits", "--set", "server.warmup=3")[2]
    code, _, err = fedpac("run", "--method", "fedpac-plus", "--dataset", "digits", "--set", "method.growth=0.5")
    assert code == 1
    assert "growth" in err
    assert "greater than or equal to 1" in err


def test_flags_override_the_file(fedpac, tmp_path):
    Path("c.toml").write_text('[method]\nname = "fedpac"\nlam = 3\n[run]\nrounds = 7\nseed = 5\n')
    assert fedpac("run", "c.toml", "--method", "fedavg", *SMALL, "--set", "training.lr=0.5", "--out", "r")[0] == 0
    import tomllib

    written = tomllib.loads(Path("r/config.toml").read_text())
    assert written["method"] == {"name": "fedavg"}
    assert (written["run"]["rounds"], written["run"]["seed"], written["training"]["lr"]) == (2, 5, 0.5)


def test_a_section_that_is_none_is_not_dropped(fedpac, tmp_path):
    (tmp_path / "odd.toml").write_text('run = "x"\n')
    for more in (["--rounds", "2"], ["--set", "run.rounds=2"]):
        code, _, wrong = fedpac("run", "odd.toml", *more)
        assert code == 1
        assert "config: run = 'x': expected a section with keys such as run.rounds" in wrong


def test_a_method_in_one_file_beside_the_user(tmp_path):
    """With the installed command, which has its own folder first on its path and not the user's."""
    (tmp_path / "mine.py").write_text(
        "from fedpac.methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n"
        '    """FedAvg by another name."""\n\n    name = "mine"\n    title = "Mine"\n'
    )
    command = [str(Path(sys.executable).with_name("fedpac")), "run", "--method", "mine:Mine", "--rounds", "2"]
    command += ["--set", "model=logistic", "--clients", "3", "--out", "run", "--no-figures"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Mine on digits")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine(\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("from fedpac.methods.base import Method\n\n\nclass Mine(Method): ...\n", "'broken:Mine' lacks local, merge"),
    ],
)
def test_a_method_of_ones_own_that_is_broken(fedpac, tmp_path, monkeypatch, text, message):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    importlib.invalidate_caches()
    code, _, complaint = fedpac("run", "--method", "broken:Mine")
    assert code == 1
    assert message in complaint
    assert "Traceback" not in complaint


def test_figures_of_a_run(fedpac):
    arguments = [a for a in SMALL if a != "--no-figures"]
    assert fedpac("run", *arguments, "--out", "r")[0] == 0
    assert {"accuracy.png", "accuracy.svg", "weights.png", "clients.png", "data.png"} <= {
        p.name for p in Path("r/figures").iterdir()
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--method", "fedpax"], "no method 'fedpax'. Did you mean 'fedpa"),
        (["run", "--method", "nowhere:Thing"], "expected an importable 'package.module:Class'"),
        (["run", "--method", ".x:Thing"], "expected an importable 'package.module:Class'"),
        (
            ["run", "--method", "fedpac.methods.base:Method"],
            "lacks local, merge, personal, received, send",
        ),
        (["run", "--method", "json:dumps"], "not a subclass of fedpac.Method"),
        (["run", "--method", ":Thing"], "expected an importable 'package.module:Class'"),
        (["run", "--set", "method.name=3"], "method.name = 3"),
        (["run", "--device", "gpu"], "device 'gpu' is not available"),
        (["run", "--dataset", "digit"], "Did you mean 'digits'"),
        (["run", "--scenario", "dirichlett"], "Did you mean 'dirichlet'"),
        (["run", "--set", "training.lrr=1"], "Did you mean 'lr'"),
        (["run", "--set", "training.lr=true"], "training.lr = True"),
        (["run", "--set", "method.lam='1'"], "lam = '1'"),
        (["run", "--method", "fedavg", "--set", "method.lam=1"], "no setting 'lam'. There are none here."),
        (["run", "--set", "training.lr"], "not of the form"),
        (["run", "--rounds", "-3"], "run.rounds = -3"),
        (["run", "--clients", "0"], "data.clients = 0"),
        (["run", "--participation", "2"], "run.participation = 2"),
        (["run", "--engine", "gpu"], "run.engine = 'gpu'"),
        (["run", "none.toml"], "there is no config file none.toml"),
        (["run", "--set", "data.scenario=natural", "--set", "data.path=nowhere"], "nowhere"),
        (["resume", "nothing"], "is not a run folder"),
        (["compare", "nothing"], "is not a run folder"),
        (["methods", "fedprox2"], "Did you mean 'fedprox'"),
        (["data", "mnist"], "no data set 'mnist'"),
        (["data", "--download"], "name the data set"),
        (["predict", "nothing", "x.npz"], "is not a run folder"),
        (["export", "nothing"], "is not a run folder"),
    ],
)
def test_mistakes_are_one_message_and_write_nothing(fedpac, tmp_path, arguments, message):
    before = sorted(tmp_path.rglob("*"))
    code, _, complaint = fedpac(*arguments)
    assert code == 1
    assert message in complaint
    assert "Traceback" not in complaint
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [["run", "--rounds", "many"], ["rum"], ["run", "--round", "3"], ["compare"], ["resume", "r", "--workers", "0"]],
)
def test_misuse_is_exit_code_two(fedpac, arguments):
    code, _, complaint = fedpac(*arguments)
    assert code == 2
    assert "Traceback" not in complaint


def test_divergence_on_the_command_line(fedpac):
    arguments = [
        *SMALL,
        "--set",
        "model=paper",
        "--set",
        "training.lr=100",
        "--set",
        "training.epochs=30",
        "--method",
        "fedavg",
        "--out",
        "r",
    ]
    code, _, complaint = fedpac("run", *arguments)
    assert code == 1
    assert re.search(r"client \d, round 1", complaint)
    assert "Traceback" not in complaint


def test_methods(fedpac):
    from fedpac.methods import list_methods

    code, text, _ = fedpac("methods")
    assert code == 0
    for name, cls in list_methods().items():
        assert re.search(rf"^ {name} +│ {re.escape(cls.title)} ", text, re.MULTILINE)
    code, text, _ = fedpac("methods", "fedpac")
    for expected in (
        "alpha_i <- argmin",
        "reports the received accuracy",
        "lam",
        "≥ 0, ≤ 1e+06",
        "centroids (5,200 B)",
        "the server needs: sums of w, head; plaintext centroids, n, statistics",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("name", "needs"),
    [("fedprox", "sums of w; plaintext n"), ("scaffold", "plaintext w, dc"), ("fedproto-g", "plaintext n, prototypes")],
)
def test_methods_says_what_the_server_needs(fedpac, name, needs):
    assert f"the server needs: {needs}\n" in fedpac("methods", name)[1]


def test_predict_and_export(fedpac):
    assert fedpac("run", *SMALL, "--out", "r")[0] == 0
    x = np.random.default_rng(0).integers(0, 255, (5, 28, 28), dtype=np.uint8)
    np.savez("x.npz", x=x, y=np.arange(5))
    code, text, complaint = fedpac("predict", "r", "x.npz", "--client", 1)
    assert code == 0
    header, *rows = list(csv.reader(text.splitlines()))
    assert header == ["row", "class", *(f"p({k})" for k in range(10))]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert all(float(row[2 + int(row[1])]) == max(map(float, row[2:])) for row in rows)
    assert "of 5 samples" in complaint
    Image.fromarray(x[0]).save("x.png")
    alone = list(csv.reader(fedpac("predict", "r", "x.png", "--client", "client 1")[1].splitlines()))
    assert alone == [["image", *header[1:]], ["x.png", *rows[0][1:]]]
    assert fedpac("export", "r", "--client", 1, "--out", "m.safetensors", "--which", "personal")[0] == 0
    assert Path("m.safetensors").exists()

    code, printed, _ = fedpac("export", "r", "--client", "client 1", "--out", "model", "--licence", "CC-BY-4.0")
    assert code == 0
    assert "model.onnx is verified" in printed
    Path("r").rename("moved")  # a bundle needs neither the run nor its data
    assert fedpac("predict", "model", "x.npz")[1] == text
    assert fedpac("predict", "model", "x.npz", "--out", "classes.csv")[1] == ""
    assert Path("classes.csv").read_text() == text
    Path("moved").rename("r")

    Image.fromarray(x[0][:20]).save("small.png")
    Path("broken.npz").write_bytes(b"PK")
    Path("cut.npz").write_bytes(Path("x.npz").read_bytes()[:500])
    with Path("array.npz").open("wb") as file:
        np.save(file, x)
    np.savez("labels.npz", x=x, y=np.arange(4))
    np.savez("z.npz", z=x)
    for arguments, message in (
        (["predict", "r", "none.npz"], "there is no file"),
        (["predict", "r", "broken.npz"], "not a readable"),
        (["predict", "r", "cut.npz"], "not a readable"),
        (["predict", "r", "array.npz"], "not a readable"),
        (["predict", "r", "labels.npz"], "one label for each of the 5 samples"),
        (["predict", "r", "z.npz"], "expected x"),
        (["predict", "r", "small.png"], "expected 28 x 28"),
        (["predict", "r", "r/config.toml"], "not a readable PNG or JPEG image"),
        (["predict", "r", "x.npz", "--client", "9"], "no client 9"),
        (["predict", "r", "x.npz", "--client", "north"], "no client north; there are 0 to 3: client 0"),
        (["export", "r", "--which", "both", "--out", "m"], "expected 'received' or 'personal'"),
        (["export", "r", "--out", "model"], "already exists"),
        (["predict", "model", "x.npz", "--client", "1"], "one client's model: --client only applies to runs"),
        (["predict", "model", "rows.csv"], "there is no file"),
    ):
        code, printed, complaint = fedpac(*arguments)
        assert (code, printed, message in complaint, "Traceback" in complaint) == (1, "", True, False), complaint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cannot_be_swallowed(number, capfd):
    """As would happen to an exception while torch or scikit-learn are being imported."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), on_interrupt(lambda: "go on like this"):
            os.kill(os.getpid(), number)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert capfd.readouterr().err == "interrupted; go on like this\n"


def test_demo_replaces_only_its_own_folder(fedpac, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.toml").write_text("")
    (tmp_path / "note").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for name in ("precious", "runs", "note"):
        code, _, complaint = fedpac("demo", "--out", name)
        assert code == 1
        assert "was not touched" in complaint
    assert sorted(tmp_path.rglob("*")) == before
