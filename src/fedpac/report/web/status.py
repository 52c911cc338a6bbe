"""How far a run has come, who is there and who is not: found out from its folder alone."""

import statistics
import time
from pathlib import Path
from typing import Any

from fedpac.config_values import read_config
from fedpac.errors import FedpacError
from fedpac.runs.folder import RunStore
from fedpac.runs.pulse import Beat, alive, read_beat

RECENT = 10  # rounds that the time left is estimated from
SHOWN = 200  # sites
PATIENCE = 2.0  # times the usual answer's time: then a site is late
AT_LEAST = 3.0  # seconds


def status(folder: Path) -> dict[str, Any]:
    """As plain values for JSON. A folder in which no run has begun yet says so."""
    store = RunStore(folder)
    if not store.begun:
        return {"name": folder.name, "state": "waiting", "text": "No run has started here yet.", "sites": []}
    try:
        return _status(folder, store)
    except (FedpacError, LookupError, OverflowError, TypeError, ValueError) as error:
        return {"name": folder.name, "state": "unreadable", "text": f"The folder cannot be read: {error}", "sites": []}


def _status(folder: Path, store: RunStore) -> dict[str, Any]:
    config = read_config(folder / "config.toml")
    wanted, rounds = int(config["run"]["rounds"]), store.rows("rounds.csv")
    done, beat = len(rounds), read_beat(folder)
    clients = store.rows("clients.csv")
    real = "federation" in config or config["run"].get("engine") == "flower"
    state = _state(store, beat, done, wanted)
    spent = [float(row["seconds"]) for row in rounds]
    left = statistics.mean(spent[-RECENT:]) * (wanted - done) if spent and state == "running" else None
    failures = store.rows("failures.csv") if (folder / "failures.csv").exists() else []
    told = {
        "name": folder.name,
        "state": state,
        "round": done,
        "rounds": wanted,
        "seconds": sum(spent),
        "left": left,
        "failures": len(failures),
        "last_failure": f"round {failures[-1]['round']}: {failures[-1]['reason']}"[:300] if failures else "",
    }
    names = [row["name"] or f"client {i}" for i, row in enumerate(clients)]
    sites = _sites(names, beat if state == "running" else None, real)
    return {**told, "text": _text(told, beat), "sites": sites[:SHOWN], "more_sites": max(0, len(sites) - SHOWN)}


def _state(store: RunStore, beat: Beat | None, done: int, wanted: int) -> str:
    if store.finished:
        return "finished"
    if beat is not None and alive(beat):
        return "running"
    return "finishing" if done >= wanted else "stopped"


def _text(told: dict[str, Any], beat: Beat | None) -> str:
    round, rounds = told["round"], told["rounds"]
    replies = f" {beat.answered} of {beat.asked} replies have arrived in this step." if beat and beat.asked else ""
    return {
        "finished": f"Finished after {round} rounds.",
        "finishing": "All rounds are done.",
        "stopped": f"Stopped after round {round} of {rounds}. Continue with 'fedpac resume'.",
        "running": f"Round {round} of {rounds} is done.{replies}",
    }[told["state"]]


def _sites(names: list[str], beat: Beat | None, real: bool) -> list[dict[str, str]]:
    """Each with its state: up, working, late, failed or away. A simulated site is never late, it waits for a worker."""
    if beat is None:
        return []
    usual = beat.seconds[0] if beat.seconds else None
    overdue = usual is not None and time.time() - beat.since > max(AT_LEAST, PATIENCE * usual)
    waiting, present = set(beat.waiting), None if beat.present is None else set(beat.present)
    found = []
    for i, name in enumerate(names):
        if i in beat.failed:
            found.append({"name": name, "state": "failed", "why": beat.failed[i][:200]})
        elif present is not None and i not in present:
            found.append({"name": name, "state": "failed", "why": "not connected"})
        elif i in waiting:
            found.append({"name": name, "state": "late" if real and overdue else "working", "why": ""})
        else:
            found.append({"name": name, "state": "up", "why": ""})
    worst = ["failed", "late", "working", "up"]
    return found if len(found) <= SHOWN else sorted(found, key=lambda site: worst.index(site["state"]))
