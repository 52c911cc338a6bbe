"""Where a run's numbers come from: the clients' samples, and every start of the run (environment.json)."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedpac.data.clients import Scenario
from fedpac.data.scenario import describe
from fedpac.errors import RunError
from fedpac.provenance import provenance
from fedpac.runs.folder import CsvRow, RunStore


@dataclass(frozen=True)
class Census:
    """What a run's folder says of the clients' data."""

    name: str
    rows: Sequence[CsvRow]
    columns: int  # of the rows, for the samples of each class
    held: dict[str, Any]  # names the data
    preprocessing: str | None = None  # JSON, of tables


def census_of(scenario: Scenario) -> Census:
    held = {"note": scenario.note, "data": data_digest(scenario)}
    preprocessing = scenario.preprocessing.to_json() if scenario.preprocessing is not None else None
    return Census(scenario.name, client_rows(scenario), scenario.classes, held, preprocessing)


def data_digest(scenario: Scenario) -> str:
    """Names the very samples that the clients hold: a config names its data set only, which may be a stand-in."""
    digest = hashlib.blake2b(digest_size=16)
    for client in scenario.clients:
        for part in filter(None, (client.train, client.test, client.validation)):
            digest.update(repr((len(part), part.rotate)).encode())
            x = part.pool.x.index_select(0, part.index)  # numbers in single precision, as all were at first
            digest.update((x if x.dtype == torch.uint8 else x.float()).numpy().data)
            digest.update(part.labels().numpy().data)
    return digest.hexdigest()


def client_rows(scenario: Scenario) -> list[CsvRow]:
    counts = describe(scenario).tolist()
    return [
        (i, c.name, "" if c.group is None else c.group, len(c.train), len(c.test), *row)
        for i, (c, row) in enumerate(zip(scenario.clients, counts, strict=True))
    ]


def check_same_data(store: RunStore, census: Census) -> None:
    """An error if the run was begun with other data."""
    begun = _environment(store)
    if any(begun.get(key, value) != value for key, value in census.held.items()):
        was = f"those it was started with{f' ({note})' if (note := begun.get('note')) else ''}"
        raise RunError(
            f"{store.path} was started with other data: the files of '{census.name}' are not {was}. "
            "Give their folder with --data-dir, or start a new run"
        )


def _environment(store: RunStore) -> dict[str, Any]:
    return store.read_json("environment.json") if (store.path / "environment.json").exists() else {}


def record_session(store: RunStore, data_dir: Path | None, after_round: int, known: dict[str, Any]) -> None:
    """environment.json: each start of the run, with what one needs to know to get the same numbers again."""
    earlier = _environment(store).get("sessions", [])
    session = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "after_round": after_round, **provenance()}
    store.write_json("environment.json", {**known, "sessions": [*earlier, session]})
    chosen = data_dir or os.environ.get("FEDPAC_DATA")
    if chosen:
        store.remember_data_dir(Path(chosen).expanduser().absolute())


def origin_of(store: RunStore) -> dict[str, Any]:
    """How the run was started, for the summary; environment.json has every later session too."""
    first, *later = store.read_json("environment.json")["sessions"]
    origin = {key: first[key] for key in ("command", "commit", "versions", "kernels", "machine")}
    return origin | {"resumed": len(later)}
