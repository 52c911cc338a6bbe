"""What goes wrong in a federation of real processes: the round goes on, nothing is lost and nothing counted twice."""

import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from processes import Federation, alive, command, end_later, rounds_in, running, until, watched

from fedpac.config import make_config
from fedpac.config_values import changed
from fedpac.data.scenario import build
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.scratch import scratch_folder, sweep
from fedpac.deploy.superlink import free_port
from fedpac.deploy.trial import join_command
from fedpac.runs.execute import run
from small_run import small

LONG = 600.0  # seconds: the machine that the tests run on may be busy
SAME = ("metrics.csv", "weights.csv")
HERE = Path(__file__).parent


def config_of(rounds, method="scaffold", **more):
    return small(rounds, method, run__evaluate_every=1, **more)


class Trial:
    """A federation of four sites, a run of it in a thread, and what was said."""

    def __init__(self, folder, stack, config, registered=4, host="127.0.0.1", **settings):
        self.made = Federation(folder, registered, host)
        self.config, self.out, self.stack = config, folder / "run", stack
        self.data = folder / "data.toml"
        self.data.write_text(config.to_toml())
        stack.enter_context(self.made.service)
        pool = stack.enter_context(end_later(ThreadPoolExecutor(1)))
        self.result = pool.submit(self.made.run, config, self.out, self.said.append, **settings)

    @property
    def said(self):
        return self.made.said

    def join(self, *clients):
        return [self.stack.enter_context(self.made.join(client, self.data)) for client in clients]

    def odd(self, behaviour, client):
        return self.stack.enter_context(self.made.odd(behaviour, client, self.data))

    def heard(self, text):
        return any(text in line for line in self.said)

    def until_heard(self, text):
        self.until(lambda: self.heard(text), f"'{text}' is said")

    def until_connected(self, times):
        def come():
            return sum(line.startswith("site 'client-3' connected") for line in self.said)

        self.until(lambda: come() >= times, f"the fourth site has come {times} times")

    def until_round(self, number):
        self.until(lambda: rounds_in(self.out) >= number, f"round {number}")

    def until(self, condition, what):
        until(lambda: condition() or self.result.done(), LONG, what)
        assert condition(), (what, self.result.result(), self.said)

    def finish(self):
        self.until(self.result.done, "the end of the run")
        self.result.result()
        rows = self.rows()
        assert len(rows) == len(set(rows)), "a result was counted twice"
        return self

    def rows(self, of=None):
        lines = [line.split(",") for line in (self.out / "metrics.csv").read_text().splitlines()[1:]]
        rows = [(int(line[0]), int(line[1]), line[2]) for line in lines]
        return [row for row in rows if of is None or row[1] == of]

    def failures(self):
        path = self.out / "failures.csv"
        return {tuple(line.split(",")[1:3]) for line in path.read_text().splitlines()[1:]} if path.exists() else set()

    def same_as_serial(self):
        values = self.config.model_dump(exclude_none=True)
        run(make_config(changed(values, "run.engine", "serial")), self.made.folder / "serial")
        for name in SAME:
            assert (self.out / name).read_bytes() == (self.made.folder / "serial" / name).read_bytes(), name


@pytest.fixture
def trial(tmp_path):
    with ExitStack() as stack:
        yield lambda config, **settings: Trial(tmp_path / "federation", stack, config, **settings)


def test_a_site_killed_in_mid_round_costs_its_own_answer(trial):
    here = trial(config_of(4, run__min_replies=3, run__deadline=4.0))
    here.join(0, 1, 2)
    silent = here.odd("silent", 3)
    until(lambda: "silent" in silent.log.read_text(), LONG, "the round has begun at the last site")
    silent.send_signal(signal.SIGKILL)
    here.finish()
    assert here.heard("site 'client-3' did not reply within 4 s")
    assert ("3", "deadline") in here.failures()
    assert len(here.rows(0)) == 8
    assert not here.rows(3)


@pytest.mark.slow
def test_a_killed_site_without_a_deadline_is_missed_by_its_heartbeat(trial):
    here = trial(config_of(3, run__min_replies=3))
    here.join(0, 1, 2)
    silent = here.odd("silent", 3)
    until(lambda: "silent" in silent.log.read_text(), LONG, "the round has begun at the last site")
    begun = time.monotonic()
    silent.send_signal(signal.SIGKILL)
    here.until_round(1)
    assert time.monotonic() - begun < 40  # two heartbeats, and what a busy machine takes
    here.finish()
    assert ("3", "lost") in here.failures()


@pytest.mark.slow
def test_a_site_that_never_answers_is_left_alone(trial):
    here = trial(config_of(3, run__min_replies=3, run__deadline=4.0))
    here.join(0, 1, 2)
    silent = here.odd("silent", 3)
    here.finish()
    assert silent.poll() is None, "it was there all the time"
    assert ("3", "deadline") in here.failures()
    assert len(here.rows(0)) == 6


@pytest.mark.slow
def test_a_second_answer_and_anothers_name_do_not_count(trial):
    here = trial(config_of(3, run__min_replies=3), registered=5, patience=15.0)
    here.join(0, 1, 3)
    twin, crook = here.odd("twin", 2), here.odd("crook", 4)
    here.finish().same_as_serial()
    assert "sent twice" in twin.log.read_text()
    assert here.heard("is refused: its key does not belong to 'client-1'")
    assert crook.poll() is None


@pytest.mark.slow
def test_a_late_site_takes_part_from_then_on(trial):
    here = trial(config_of(40, "fedavg", run__min_replies=3), patience=1.0)
    here.join(0, 1, 2)
    here.until_round(2)
    here.join(3)
    here.until_heard("site 'client-3' connected, 4 of 4")
    here.finish()
    assert {row[0] for row in here.rows(3)} == set(range(min(row[0] for row in here.rows(3)), 41))


@pytest.mark.slow
def test_a_site_comes_back_with_its_state(trial, tmp_path):
    here = trial(config_of(5000, run__min_replies=3, run__deadline=20.0))
    *_, last = here.join(0, 1, 2, 3)
    here.until_round(3)
    last.send_signal(signal.SIGKILL)
    (back,) = here.join(3)
    here.until_connected(2)
    left = max(row[0] for row in here.rows(3))
    here.until(lambda: max(row[0] for row in here.rows(3)) > left, "it takes part again")
    assert "refused so far" in back.log.read_text()
    back.send_signal(signal.SIGTERM)  # politely: the server is told, and it may come back at once
    assert back.wait(LONG) == 130
    (again,) = here.join(3)
    here.until_connected(3)
    assert "refused so far" not in again.log.read_text().split("connected")[-1]
    folder = next((tmp_path / "federation" / "state" / "client-3").iterdir())
    assert len(list(folder.glob("client-3-round-*"))) == 3


@pytest.mark.slow
def test_too_few_sites_are_waited_for(trial):
    here = trial(config_of(2))
    here.join(0, 1, 2)
    here.until_heard("waiting for client-3: 3 of 4 sites are connected")
    assert not rounds_in(here.out)
    here.join(3)
    here.finish().same_as_serial()


@pytest.mark.slow
def test_a_killed_superlink_is_started_again(trial):
    here = trial(config_of(30))
    here.join(0, 1, 2, 3)
    here.until_round(3)
    os.kill(here.made.service.link.process.pid, signal.SIGKILL)
    here.until_heard("resuming from the last checkpoint")
    here.finish().same_as_serial()


@pytest.mark.slow
def test_a_site_whose_disk_is_full_says_so(trial):
    here = trial(config_of(3, run__min_replies=3))
    here.join(0, 1, 2)
    state = here.made.folder / "state" / "client-3"
    state.mkdir(parents=True)
    tiny = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=20k none {state} && exec "$@"', "sh"]
    if subprocess.run([*tiny, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    here.stack.enter_context(here.made.join(3, here.data, before=tiny))
    here.finish()
    reasons = (here.out / "failures.csv").read_text()
    assert "the disk is full" in reasons or here.heard("the disk is full")
    assert len(here.rows(0)) == 6


@pytest.mark.slow
def test_a_network_cut_for_a_minute_is_survived(tmp_path):
    done = subprocess.run(
        ["unshare", "-rn", sys.executable, HERE / "cut_network.py", tmp_path],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if "not permitted" in done.stderr:
        pytest.skip("no network namespace can be made here")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_left_of_a_trial_that_is_killed(tmp_path):
    command = [sys.executable, "-m", "fedpac", "run", "--engine", "flower", "--out", str(tmp_path / "run")]
    config = tmp_path / "config.toml"
    config.write_text(config_of(2000, "fedavg", data__clients=2).to_toml())
    (tmp_path / "tmp").mkdir()
    with (tmp_path / "log").open("w") as log:
        place = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
        process = subprocess.Popen([*command, str(config)], stdout=log, stderr=log, env=place)
    with watched(process, tmp_path / "log"):
        until(lambda: rounds_in(tmp_path / "run") >= 1, LONG, "the first round")
    family = descendants(process.pid)
    assert len(family) >= 3, "SuperLink and two sites"
    process.kill()
    process.wait()
    until(lambda: not any(alive(one) for one in family), LONG, "all processes have ended")
    (left,) = (tmp_path / "tmp").glob("fedpac-trial-*")
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    with scratch_folder(tmp_path / "tmp") as next_trial:
        assert list((tmp_path / "tmp").glob("fedpac-trial-*")) == [next_trial], "the next one removes its keys"
        sweep(tmp_path / "tmp")
        assert next_trial.exists(), "it is alive"
    assert not next_trial.exists()


@pytest.mark.slow
def test_a_killed_trial_is_resumed_to_the_same_numbers(tmp_path):
    config = config_of(30)
    (tmp_path / "config.toml").write_text(config.to_toml())
    run(make_config(changed(config.model_dump(exclude_none=True), "run.engine", "serial")), tmp_path / "serial")
    started = ("run", tmp_path / "config.toml", "--engine", "flower", "--no-figures", "--out", tmp_path / "run")
    with command(tmp_path, *started) as process:
        until(lambda: rounds_in(tmp_path / "run") >= 3, LONG, "three rounds")
        process.send_signal(signal.SIGKILL)
    assert rounds_in(tmp_path / "run") < 30
    for follow_up in (
        ("resume", tmp_path / "run", "--no-figures"),
        ("export", tmp_path / "run", "--out", tmp_path / "m.safetensors"),
    ):
        with command(tmp_path, *follow_up) as process:
            assert process.wait(LONG) == 0, process.log.read_text()
    for name in SAME:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes(), name


@pytest.fixture
def clinics(tmp_path):
    """federation.toml, certificates, and the data of three sites in files that only they have."""
    scenario = build(small().data, 0)
    sites = ("a", "b", "c")
    (tmp_path / "data").mkdir()
    for name, client in zip(sites, scenario.clients, strict=False):
        arrays = {}
        for split, part in (("train", client.train), ("test", client.test)):
            arrays[f"x_{split}"] = part.pool.x[part.index].numpy()
            arrays[f"y_{split}"] = part.labels().numpy()
        np.savez(tmp_path / "data" / f"{name}.npz", **arrays)
    make_certificates(tmp_path / "certs", ["localhost"], sites)
    stated = {
        "model": "logistic",
        "method": {"name": "scaffold"},
        "training": {"epochs": 1, "batch": 10},
        "run": {"rounds": 30, "evaluate_every": 1},
        "federation": {"sites": sites, "classes": scenario.classes, "shape": list(scenario.shape)},
    }
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(stated))
    del stated["federation"]
    stated["run"]["engine"] = "serial"
    stated["data"] = {"scenario": "natural", "path": str(tmp_path / "data"), "min_samples": 2}
    run(make_config(stated), tmp_path / "serial")
    return tmp_path


@pytest.fixture
def real(clinics):
    """`serve()` and `join(name)` of the clinics, by their commands."""
    address, certs = f"127.0.0.1:{free_port()}", clinics / "certs"

    class Real:
        def serve(self, *more):
            where = ("--address", address, "--certs", certs, "--out", clinics / "run")
            return command(clinics, "serve", clinics / "federation.toml", *where, *more)

        def join(self, name):
            joining = join_command(address, name, certs, clinics / "state" / name)
            return running([*joining, "--data", str(clinics / "data" / f"{name}.npz")], clinics, name)

    return Real()


@pytest.mark.slow
def test_a_killed_server_goes_on_with_the_same_sites(clinics, real, fedpac):
    with ExitStack() as stack:
        with real.serve() as server:
            for name in "abc":
                stack.enter_context(real.join(name))
            until(lambda: rounds_in(clinics / "run") >= 3, LONG, "three rounds")
            server.send_signal(signal.SIGKILL)
        assert 3 <= rounds_in(clinics / "run") < 30
        with real.serve() as server:
            assert server.wait(LONG) == 0, server.log.read_text()
            for name in "abc":
                until(lambda name=name: list((clinics / "state" / name).glob("*/report.md")), LONG, f"{name}'s report")
    assert (clinics / "run" / "metrics.csv").read_bytes() == (clinics / "serial" / "metrics.csv").read_bytes()
    assert "class_0" not in (clinics / "run" / "clients.csv").read_text(), "the server knows no labels"
    code, printed, _ = fedpac("compare", clinics / "run", clinics / "serial", "--out", clinics / "comparison")
    assert code == 0
    assert "SCAFFOLD" in printed
    code, printed, _ = fedpac("resume", clinics / "run")
    assert code == 0
    assert "is finished" in printed


@pytest.mark.slow
def test_a_site_with_broken_data_says_so_and_takes_part_once_they_are_mended(clinics, real):
    stated = clinics / "federation.toml"
    stated.write_text(stated.read_text().replace("rounds = 30", "rounds = 5000\nmin_replies = 2"))
    samples = clinics / "data" / "c.npz"
    good = samples.read_bytes()
    samples.write_bytes(good[: len(good) // 2])

    def clients():
        return {line.split(",")[1] for line in (clinics / "run" / "metrics.csv").read_text().splitlines()[1:]}

    with real.serve("--patience", 5) as server, real.join("a"), real.join("b"), real.join("c") as broken:
        until(lambda: rounds_in(clinics / "run") >= 3, LONG, "three rounds of the others")
        assert clients() == {"0", "1"}
        until(lambda: "('c') cannot take part" in server.log.read_text(), LONG, "the server says so")
        assert "failed: site 'c': " in broken.log.read_text(), "and the site"
        assert broken.log.read_text().count("c.npz") == 1, "once"
        samples.write_bytes(good)
        until(lambda: "2" in clients(), LONG, "it takes part")


def descendants(process):
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, new = [], [process]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found
