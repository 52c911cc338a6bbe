"""A run through interruptions: killed, cut off, damaged, continued by others."""

import csv
import json
import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpac.config import make_config
from fedpac.errors import CheckpointError, ConfigError, RunError, TrainingError
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedpac import FedPAC
from fedpac.runs.execute import advance, resume, run
from fedpac.runs.folder import RunStore
from small_run import exact, small

fork = multiprocessing.get_context("fork")


def rows(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / table).open() as file:
        return list(csv.DictReader(file))


class Diverging(FedPAC):
    """The weights of client 2 are no numbers from round 5 on."""

    name = "diverging"

    def local(self, client, down):
        up = super().local(client, down)
        if client.id == 2 and client.round == 5:
            raise TrainingError(f"client {client.id}, round {client.round}: training diverged")
        return up


class Infinite(FedAvg):
    """Trains with numbers that are not, really."""

    name = "infinite"

    def fit(self, client, w, down):
        if client.id == 2 and client.round == 5:
            client.train_set[0].fill_(float("nan"))
        return super().fit(client, w, down)


# --- the same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "workers"), [("serial", None), ("process", 1), ("process", 3)])
def test_engine_and_workers_change_nothing(tmp_path, reference, engine, workers):
    run(small(run__engine=engine, run__workers=workers), tmp_path / "run")
    for name in ("metrics.csv", "weights.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (reference / name).read_bytes()


def test_every_round_and_client_is_there_once(reference):
    metrics = [(int(r["round"]), int(r["client"]), r["split"]) for r in rows(reference, "metrics.csv")]
    expected = {(t, i, which) for t in (2, 4, 6, 8) for i in range(4) for which in ("received", "personal")}
    assert len(metrics) == len(set(metrics))
    assert set(metrics) == expected
    assert [int(r["round"]) for r in rows(reference, "rounds.csv")] == list(range(1, 9))
    assert {int(r["round"]) for r in rows(reference, "weights.csv")} == {1, 2, 4, 6, 8}  # the first and the evaluated
    for t in (1, 2, 4, 6, 8):
        weights = [float(r["weight"]) for r in rows(reference, "weights.csv") if int(r["round"]) == t]
        assert sum(weights) == pytest.approx(4)


def test_the_folder_says_where_it_comes_from(reference):
    session = json.loads((reference / "environment.json").read_text())["sessions"][0]
    assert {"command", "commit", "versions", "machine", "kernels", "started"} <= session.keys()
    summary = json.loads((reference / "summary.json").read_text())
    assert {key: summary[key] for key in ("command", "commit", "versions")} == {
        key: session[key] for key in ("command", "commit", "versions")
    }
    assert (summary["reported"], summary["resumed"]) == ("received", 0)
    last = [
        float(r["accuracy"]) for r in rows(reference, "metrics.csv") if (r["round"], r["split"]) == ("8", "received")
    ]
    assert summary["received"]["final"]["mean"] == pytest.approx(sum(last) / 4)


# --- killed -------------------------------------------------------------------------------------------------------


def kill_after(config, folder: Path, rounds: int, delay: float) -> bool:
    """Run in a process of its own and kill it some time after that many rounds; True if it was not done by then."""

    def work() -> None:
        resume(folder) if (folder / "config.toml").exists() else run(config, folder)

    process = fork.Process(target=work)
    process.start()
    give_up = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < give_up:
        if (folder / "rounds.csv").exists() and len((folder / "rounds.csv").read_bytes().splitlines()) > rounds:
            break
        time.sleep(0.0005)
    time.sleep(delay)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(tmp_path):
    config = small(rounds=24, run__checkpoint_every=2)
    run(config, tmp_path / "whole")
    chance = random.Random(7)
    killed = 0
    for attempt in range(4):
        folder = tmp_path / f"killed{attempt}"
        for rounds in sorted(chance.sample(range(22), 2)):
            killed += kill_after(config, folder, rounds, delay=chance.random() * 0.02)
        if not (folder / "config.toml").exists():
            run(config, folder)
        resume(folder)
        assert exact(folder) == exact(tmp_path / "whole")
        assert [int(r["round"]) for r in rows(folder, "rounds.csv")] == list(range(1, 25))
        assert not list(folder.glob(".*.tmp"))
    assert killed >= 4  # else the test has not tested anything


def test_the_command_line_killed_and_resumed(tmp_path):
    config = small(rounds=40, run__checkpoint_every=5, run__engine="process")  # workers even for visits this short
    run(config, tmp_path / "whole")
    (tmp_path / "c.toml").write_text(config.to_toml())
    command = [str(Path(sys.executable).with_name("fedpac"))]
    process = subprocess.Popen([*command, "run", "c.toml", "--out", "killed", "--no-figures"], cwd=tmp_path)
    table, give_up = tmp_path / "killed" / "rounds.csv", time.monotonic() + 240
    while not (table.exists() and len(table.read_bytes().splitlines()) > 12) and time.monotonic() < give_up:
        time.sleep(0.001)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done = subprocess.run([*command, "resume", "killed"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert exact(tmp_path / "killed") == exact(tmp_path / "whole")
    assert children, "no workers seen"
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()], "workers outlived their parent"


def test_interrupt_and_terminate_say_how_to_go_on(tmp_path):
    (tmp_path / "c.toml").write_text(small(rounds=5000, run__evaluate_every=5000).to_toml())
    command = [str(Path(sys.executable).with_name("fedpac")), "run", "c.toml", "--out", "it", "--no-figures"]
    for number in (signal.SIGINT, signal.SIGTERM):
        shutil.rmtree(tmp_path / "it", ignore_errors=True)
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        table, give_up = tmp_path / "it" / "rounds.csv", time.monotonic() + 240  # a busy machine starts slowly
        while not (table.exists() and len(table.read_bytes().splitlines()) > 5) and time.monotonic() < give_up:
            time.sleep(0.001)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 130
        assert complaint.strip() == "interrupted; continue with: fedpac resume it"


def test_a_finished_run_is_left_alone(tmp_path, reference):
    folder = shutil.copytree(reference, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert resume(folder) == json.loads(before["summary.json"])
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("ways", "told"),
    [
        ({"run__min_replies": 5}, "only 4 clients participate"),
        ({"run__min_replies": 3, "run__participation": 0.5}, "only 2 clients participate"),
        ({"run__engine": "serial", "run__deadline": 1.0}, "'serial' cannot stop a client that is late"),
    ],
)
def test_settings_that_cannot_work_leave_no_folder_behind(tmp_path, ways, told):
    with pytest.raises(ConfigError, match=told):
        run(small(**ways), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_half_written_line_is_forgotten(tmp_path, reference):
    folder = shutil.copytree(reference, tmp_path / "run")
    (folder / "summary.json").unlink()
    for name in ("metrics.csv", "weights.csv", "rounds.csv"):
        with (folder / name).open("a") as file:
            file.write("9,0,receiv")
    resume(folder)
    assert exact(folder) == exact(reference)


def test_rows_that_were_deleted_are_noticed(tmp_path, reference):
    folder = shutil.copytree(reference, tmp_path / "run")
    (folder / "summary.json").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("rounds.csv", "metrics.csv"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        for left in ("".join(lines[:3]), "".join([lines[0], *lines[3:]]), None):
            (folder / name).unlink() if left is None else (folder / name).write_text(left)
            with pytest.raises(RunError, match=rf"{name} does not hold all rounds up to it; restore the file"):
                resume(folder)
        (folder / name).write_bytes(before[name])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    resume(folder)


# --- numbers that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Diverging, Infinite])
def test_divergence_names_client_and_round_and_keeps_the_checkpoint(tmp_path, method):
    config = small(method=f"{__name__}:{method.__name__}")
    with pytest.raises(TrainingError, match="client 2, round 5"):
        run(config, tmp_path / "run")
    assert [int(r["round"]) for r in rows(tmp_path / "run", "rounds.csv")] == [1, 2, 3, 4]
    checkpoint = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()  # of round 3
    with pytest.raises(TrainingError, match="client 2, round 5"):
        resume(tmp_path / "run", method=config.method["name"])
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == checkpoint
    assert [int(r["round"]) for r in rows(tmp_path / "run", "rounds.csv")] == [1, 2, 3, 4]


# --- checkpoints --------------------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(tmp_path, reference) -> Path:
    folder = shutil.copytree(reference, tmp_path / "run")
    (folder / "summary.json").unlink()
    return folder


def test_a_line_that_was_cut_off_is_not_read(unfinished):
    for name in ("rounds.csv", "metrics.csv"):
        whole = RunStore(unfinished).rows(name)
        path = unfinished / name
        path.write_bytes(path.read_bytes()[:-3])
        assert RunStore(unfinished).rows(name) == whole[:-1]


def test_a_checkpoint_cut_in_half(unfinished):
    path = unfinished / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = exact(unfinished)
    with pytest.raises(CheckpointError, match="is damaged"):
        resume(unfinished)
    assert exact(unfinished) == before


@pytest.mark.parametrize("place", [0, 9, 40, 60, 80, 100, 120, 140, 160, 0.3, 0.6, 0.999])
def test_a_flipped_byte_is_found(unfinished, place):
    path = unfinished / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[int(place * len(data)) if isinstance(place, float) else place] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        resume(unfinished)


def test_a_checkpoint_of_another_config(unfinished):
    config = (unfinished / "config.toml").read_text()
    (unfinished / "config.toml").write_text(config.replace("lam = 1.0", "lam = 2.0"))
    with pytest.raises(CheckpointError, match=r"does not match the config\.toml"):
        resume(unfinished)


def test_a_checkpoint_of_an_older_revision_of_the_method(unfinished, monkeypatch):
    """The same settings mean other numbers now."""
    monkeypatch.setattr(FedPAC, "revision", 2)
    with pytest.raises(CheckpointError, match="older revision of the method"):
        resume(unfinished)


def test_other_workers_and_engine_may_continue(unfinished, reference):
    config = (unfinished / "config.toml").read_text()
    (unfinished / "config.toml").write_text(config.replace('engine = "auto"', 'engine = "serial"'))
    resume(unfinished, workers=1)
    assert (unfinished / "metrics.csv").read_bytes() == (reference / "metrics.csv").read_bytes()


def test_a_checkpoint_without_its_parts(unfinished):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, unfinished / "checkpoint.safetensors")
    with pytest.raises(CheckpointError, match="is damaged"):
        resume(unfinished)


# --- other data -----------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_its_own_data_only(tmp_path):
    stream, path, folder = np.random.default_rng(0), tmp_path / "own.npz", tmp_path / "run"
    arrays = {"x": stream.normal(size=(80, 5)), "y": np.arange(80) % 2, "owner": np.arange(80) // 20}
    np.savez(path, **arrays)
    sections = {"model": "logistic", "data": {"scenario": "natural", "path": str(path)}, "run": {"rounds": 4}}
    advance(make_config(sections), folder, callbacks=[lambda report: report.round == 2])
    before = exact(folder)
    arrays["x"][7] += 1e-3  # counts and shapes are the same
    np.savez(path, **arrays)
    with pytest.raises(RunError, match="was started with other data: the files of 'own own' are not those"):
        resume(folder)
    assert exact(folder) == before
    arrays["x"] = np.random.default_rng(0).normal(size=(80, 5))
    np.savez(path, **arrays)
    assert resume(folder)["rounds"] == 4


def test_a_run_on_a_stand_in_does_not_go_on_with_the_published_data(unfinished):
    path = unfinished / "environment.json"
    environment = json.loads(path.read_text()) | {"note": "stand-in: 7 images"}
    del environment["data"]  # a run of an earlier release names no data
    path.write_text(json.dumps(environment))
    with pytest.raises(RunError, match=r"not those it was started with \(stand-in: 7 images\)"):
        resume(unfinished)


# --- folders ------------------------------------------------------------------------------------------------------
