"""The live page: what it tells of a run, who may read it, and that a run never notices it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedpac.engines.site import Job, Outcome
from fedpac.message import Message
from fedpac.report.web.live import is_loopback
from fedpac.report.web.status import status
from fedpac.runs.execute import run
from fedpac.runs.pulse import PAUSE, PULSE, beating, read_beat
from forged_runs import forge
from live_page import Growing, dead_process, served
from small_run import exact, small

FEDPAC = [sys.executable, "-m", "fedpac"]


def get(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return str(answer.read().decode())


def code_of(url: str, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(url, **headers)
    return refused.value.code


# --- how far it is, who is there ----------------------------------------------------------------------------------


def test_up_late_failed_and_away(tmp_path):
    growing = Growing(tmp_path / "run")
    growing.round(1)
    growing.answers(2, late=3, failed=1)
    told = status(growing.folder)
    assert (told["state"], told["round"], told["rounds"]) == ("running", 1, 6)
    assert [site["state"] for site in told["sites"]] == ["up", "failed", "up", "late", "up"]
    assert told["sites"][1]["why"] == "site <b>gone</b>"
    assert told["left"] == pytest.approx(5.0)
    growing.pulse.present([0, 1, 2, 3])
    assert status(growing.folder)["sites"][4] == {"name": "client 4", "state": "failed", "why": "not connected"}


def test_a_simulated_site_waits_for_a_worker_and_is_not_late(tmp_path):
    growing = Growing(tmp_path / "run")
    config = growing.folder / "config.toml"
    config.write_text(config.read_text().replace("flower", "process"))
    growing.answers(1, late=3, failed=1)
    assert status(growing.folder)["sites"][3]["state"] == "working"


def test_a_run_whose_process_is_gone_has_stopped(tmp_path):
    growing = Growing(tmp_path / "run")
    growing.round(1)
    assert status(growing.folder)["state"] == "running"
    growing.pulse.beat.pid = dead_process()
    growing.pulse._write()
    told = status(growing.folder)
    assert told["state"] == "stopped"
    assert "fedpac resume" in told["text"]
    growing.finish()
    assert status(growing.folder)["state"] == "finished"
    assert status(tmp_path / "nothing")["state"] == "waiting"


@pytest.mark.parametrize("rounds", ["inf", "nan", "1e999", "-3", "'x'", "[1]"])
def test_a_config_that_is_none_is_unreadable_and_no_traceback(tmp_path, rounds):
    folder = forge(tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("rounds = 10", f"rounds = {rounds}"))
    told = status(folder)
    assert told["state"] == ("finishing" if rounds == "-3" else "unreadable")


@pytest.mark.parametrize("text", ["", "[]", "{}x", '{"pid": "x"}', '{"failed": 3}', '{"waiting": ["x"]}', '{"a": 1}'])
def test_a_pulse_that_is_none_is_left_alone(tmp_path, text):
    (tmp_path / PULSE).write_text(text)
    assert read_beat(tmp_path) is None


def test_a_run_tells_how_it_is_and_tidies_up(tmp_path):
    seen = []
    run(small(rounds=3), tmp_path / "run", callbacks=[lambda _: seen.append(read_beat(tmp_path / "run"))])
    assert [beat.present for beat in seen] == [[0, 1, 2, 3]] * 3
    assert seen[0].pid == os.getpid()
    assert not (tmp_path / "run" / PULSE).exists()


def test_the_last_of_many_answers_is_written_too(tmp_path):
    """Answers that come right after each other cost one write; nothing may come after the last for a long time."""
    with beating(tmp_path) as pulse:
        pulse.asked([Job("learn", i, 1, Message()) for i in range(3)])
        pulse.heard(Outcome(0))
        pulse.heard(Outcome(1))
        assert read_beat(tmp_path).waiting == [0, 1, 2]
        until = time.monotonic() + 30
        while read_beat(tmp_path).waiting != [2]:
            assert time.monotonic() < until
            time.sleep(0.05)
        pulse.heard(Outcome(2))  # is still to be written when it ends
    time.sleep(2 * PAUSE)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_hold_the_pulse_is_no_matter_to_the_run(tmp_path, reference, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpac.runs.pulse.Path.write_text", full, raising=False)
    run(small(), tmp_path / "run")
    assert exact(tmp_path / "run") == exact(reference)


# --- who may read it ----------------------------------------------------------------------------------------------


def test_on_loopback_other_names_are_refused(tmp_path):
    growing = Growing(tmp_path / "run")
    with served(growing.folder) as url:
        page = get(url)
        assert "connect-src 'self'" in page
        assert code_of(url, Host="evil.example") == 403
        assert code_of(f"{url}events", Host="evil.example:80") == 403
        assert get(url, Host="localhost:1").startswith("<!doctype")
        assert code_of(f"{url}../config.toml") == 404


def test_names_of_strangers_stay_text(tmp_path):
    growing = Growing(tmp_path / "<img src=x onerror=alert(1)>")
    with served(growing.folder) as url:
        page = get(url)
    assert "<img" not in page
    assert "Live: &lt;img src=x" in page


def test_elsewhere_readers_need_the_token(tmp_path):
    growing = Growing(tmp_path / "run")
    with served(growing.folder, token="secret") as url:
        assert code_of(url) == code_of(f"{url}?token=wrong") == code_of(f"{url}events?token=") == 403
        assert get(f"{url}?token=secret").startswith("<!doctype")


def test_what_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "example.org", "127.0.0.1.evil.example", "")))


def test_watching_nothing_is_an_error(fedpac, tmp_path):
    code, _, complaint = fedpac("watch", tmp_path / "nowhere")
    assert code == 1
    assert "is not a run folder" in complaint


# --- the run never notices ----------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if " watch " in line]


def test_killing_the_page_changes_nothing_for_the_run(tmp_path, reference):
    config = tmp_path / "config.toml"
    config.write_text((reference / "config.toml").read_text())
    process = subprocess.Popen(
        [*FEDPAC, "run", config, "--live", "--out", tmp_path / "run", "--no-figures"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = re.search(r"http://\S+", process.stdout.readline())
    assert url is not None
    deadline, page = time.monotonic() + 60, []
    while not page and process.poll() is None and time.monotonic() < deadline:
        page = children(process.pid)
    assert len(page) == 1
    os.kill(page[0], signal.SIGKILL)
    assert process.wait(120) == 0
    assert exact(tmp_path / "run") == exact(reference)


def test_the_page_follows_a_run_and_ends_with_it(tmp_path):
    """As a reader sees it over the wire: rounds, then the end; and the process is gone."""
    growing = Growing(tmp_path / "run")
    growing.round(1)
    port = 20_000 + os.getpid() % 20_000
    command = [*FEDPAC, "watch", growing.folder, "--port", str(port), "--parent", str(os.getpid())]
    page = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(300):
        try:
            stream = urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=20)
            break
        except OSError:
            time.sleep(0.1)
    rounds, names = [], []
    with stream:
        for line in stream:
            name, _, text = line.decode().partition(": ")
            if name == "event":
                names.append(text.strip())
            if name == "data" and names[-1] == "status":
                rounds.append(json.loads(text)[0]["round"])
                if rounds[-1] < 3:
                    growing.round(rounds[-1] + 1)
                else:
                    growing.finish()
    assert sorted(set(rounds)) == [1, 2, 3]
    assert names[-1] == "end"
    assert "contents" in names
    page.terminate()
    assert page.wait(20) == 130
    assert Path(growing.folder / "summary.json").exists()
