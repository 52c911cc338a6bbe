"""The live page of a real federation: `fedpac serve`, three `fedpac join`, and `fedpac watch`, each a process."""

import csv
import re
import signal
import sys
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import tomli_w
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fedpac.data.scenario import build
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.deploy.trial import join_command
from small_run import small

SITES = ("clinic-a", "clinic-b", "clinic-c")
ROUNDS = 40
LONG = 300  # seconds: the machine may be busy


@pytest.fixture
def process(tmp_path):
    """Starts a program whose output goes to `log`; all of them end with the test."""
    with ExitStack() as stack:

        @contextmanager
        def running(name, command):
            started = start(command, flower_environment(tmp_path / "flwr"), tmp_path / f"{name}.log")
            started.log = tmp_path / f"{name}.log"
            try:
                yield started
            finally:
                end(started)

        yield lambda name, command: stack.enter_context(running(name, [str(part) for part in command]))


def until(page, condition, what):
    return WebDriverWait(page, LONG, poll_frequency=0.05).until(condition, what)


def rounds_of(folder):
    path = folder / "rounds.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def write_federation(folder):
    """federation.toml, certificates, and for each site a file of data that only it has."""
    scenario = build(small().data, 0)
    for name, client in zip(SITES, scenario.clients, strict=False):
        arrays = {}
        for split, part in (("train", client.train), ("test", client.test)):
            arrays[f"x_{split}"], arrays[f"y_{split}"] = part.pool.x[part.index].numpy(), part.labels().numpy()
        np.savez(folder / f"{name}.npz", **arrays)
    make_certificates(folder / "certs", ["localhost"], SITES)
    stated = {
        "model": "logistic",
        "method": {"name": "fedpac"},
        "training": {"epochs": 1, "batch": 10},
        "run": {"rounds": ROUNDS, "evaluate_every": 1, "min_replies": 2, "deadline": 10.0},
        "federation": {"sites": SITES, "classes": scenario.classes, "shape": list(scenario.shape)},
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(stated))


def test_sites_come_are_late_and_fail_and_nobody_minds_the_page(chromium, process, tmp_path):
    write_federation(tmp_path)
    fedpac, run, address = [sys.executable, "-m", "fedpac"], tmp_path / "run", f"127.0.0.1:{free_port()}"
    serve = ["serve", tmp_path / "federation.toml", "--address", address, "--certs", tmp_path / "certs", "--out", run]
    server = process("server", [*fedpac, *serve])
    joined = [
        process(
            site,
            [*join_command(address, site, tmp_path / "certs", tmp_path / site), "--data", f"{tmp_path / site}.npz"],
        )
        for site in SITES
    ]

    def state(page):
        return page.find_element(By.CSS_SELECTOR, ".status").text

    until(chromium, lambda _: rounds_of(run) >= 1 or server.poll() is not None, "a first round")
    joined[2].send_signal(signal.SIGSTOP)  # as a machine that hangs
    watcher = process("watch", [*fedpac, "watch", run, "--port", str(free_port())])
    url = until(chromium, lambda _: re.search(r"http://\S+", watcher.log.read_text()), "the address of the page")[0]
    until(chromium, lambda page: page.get(url) or page.find_elements(By.ID, "curves"), "the page")
    until(chromium, lambda page: re.search("a: up.*b: up.*c: late", state(page), re.DOTALL), "one of them is late")
    joined[2].send_signal(signal.SIGCONT)
    until(chromium, lambda page: "clinic-c: up" in state(page), "it is there again")
    seen = rounds_of(run)
    until(chromium, lambda page: int(re.search(r"Round (\d+) of", state(page))[1]) > seen, "rounds go on")
    joined[2].kill()
    until(chromium, lambda page: "clinic-c: failed" in state(page), "the killed site has failed")
    assert re.search(r"\d+ failures? so far, the last in round \d+", state(chromium))

    watcher.kill()
    until(chromium, lambda page: page.find_element(By.ID, "state").text.startswith("No word"), "the page says so")
    assert server.wait(LONG) == 0, server.log.read_text()
    assert rounds_of(run) == ROUNDS
    with (run / "metrics.csv").open() as file:
        scored = [(int(row["round"]), int(row["client"])) for row in csv.DictReader(file) if row["split"] == "received"]
    assert all((t, client) in scored for t in range(1, ROUNDS + 1) for client in (0, 1))
    chromium.get("about:blank")
    chromium.get_log("browser")  # of a connection that was lost, as it should be
