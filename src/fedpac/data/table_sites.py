"""Clients from tables: every site reads and splits its own rows, and they agree on a common preprocessing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpac.data import preprocessing
from fedpac.data.clients import Scenario
from fedpac.data.own import from_arrays
from fedpac.data.preprocessing import Preprocessing
from fedpac.data.schema import Schema, read_schema
from fedpac.data.tables import Table, read_table
from fedpac.errors import DataError
from fedpac.message import Message
from fedpac.randomness import numpy_stream, stream_seed


class TableSite:
    """One site's rows, which stay here: others see the answers to two questions."""

    def __init__(
        self, name: str, number: int, schema: Schema, seed: int, test_share: float, validation_share: float = 0.0
    ) -> None:
        self.name = name
        self.schema = schema
        table = read_table(schema.sites[name], schema.missing)
        for column in (schema.target, schema.id):
            if column is not None and column not in table:
                raise DataError(f"{table.name} has no column '{column}'; it has {', '.join(table.columns)}")
        labelled = np.array([text is not None for text in table.texts(schema.target)])
        self.unlabelled = int((~labelled).sum())
        table = table.rows(labelled)
        chosen = _drawn_rows(table, schema.id, seed, number, test_share, "test")
        train, self.test = table.rows(~chosen), table.rows(chosen)
        chosen = _drawn_rows(train, schema.id, seed, number, validation_share, "validation")
        self.train, self.validation = train.rows(~chosen), train.rows(chosen)  # which preprocessing never sees

    def __len__(self) -> int:
        return len(self.train) + len(self.validation) + len(self.test)

    def count(self) -> Message:
        return preprocessing.count(self.train, self.schema)

    def deviate(self, down: Message) -> Message:
        return preprocessing.deviate(self.train, self.schema, down)

    def arrays(self, fitted: Preprocessing) -> list[NDArray[Any]]:
        """x_train, y_train, x_test, y_test; and x_validation, y_validation if there are any."""
        absent = fitted.absent.get(self.name, ())
        parts = [self.train, self.test, *([self.validation] if len(self.validation) else [])]
        return [array for rows in parts for array in (fitted.apply(rows, absent), self._targets(fitted, rows))]

    def _targets(self, fitted: Preprocessing, rows: Table) -> NDArray[Any]:
        return fitted.labels(rows) if fitted.predicted is None else fitted.predicted.encode(rows)[:, 0]


def _drawn_rows(table: Table, id: str | None, seed: int, number: int, share: float, purpose: str) -> NDArray[np.bool_]:
    """Which rows are kept for testing, or of the others for validation.

    With an id, whether a row is depends on its id alone: a patient who was at two sites is on the same side at both,
    and no site has to tell who its patients are.
    """
    chosen = np.zeros(len(table), dtype=bool)
    if not share:
        return chosen
    if id is None:
        if len(table) > 1:
            test = min(max(1, round(share * len(table))), len(table) - 1)
            chosen[numpy_stream(seed, f"table {purpose} split", client=number).permutation(len(table))[:test]] = True
        return chosen
    ids = table.texts(id)
    if None in ids:
        raise DataError(
            f"{table.name}, row {ids.index(None) + 1}: {id} is missing; every row needs an id for the split"
        )
    drawn = {text: stream_seed(seed, f"table {purpose} split of {text}") / 2**63 < share for text in set(ids)}
    return np.array([drawn[text] for text in ids])


def fit_preprocessing(sites: list[TableSite], schema: Schema) -> Preprocessing:
    """Two questions to every site, and what the answers make."""
    counts = {site.name: site.count() for site in sites}
    down = preprocessing.means(counts)
    return preprocessing.merge(schema, counts, {site.name: site.deviate(down) for site in sites})


def from_tables(
    path: Path | str, seed: int = 0, test_share: float = 0.2, min_samples: int = 10, validation_share: float = 0.0
) -> Scenario:
    """A scenario from CSV or Parquet tables, one file or folder per site, by a schema ('fedpac data describe').

    A random `test_share` of the rows is kept for testing, and `validation_share` of the others to choose by; with an
    id in the schema, of the ids. Numbers are scaled and categories made one-hot by statistics of all sites' training
    rows, which sites report as sums and counts; so is a number to predict. Rows without a target, and sites with fewer
    than `min_samples` others, are left out.
    """
    path = Path(path).expanduser()
    schema = read_schema(path)
    every = [TableSite(name, i, schema, seed, test_share, validation_share) for i, name in enumerate(schema.sites)]
    sites = [site for site in every if len(site) >= min_samples]
    if not sites:
        raise DataError(f"{path}: no site has {min_samples} rows or more.")
    for site in sites:
        for part, rows in (("training", site.train), ("test", site.test)):
            if not len(rows):
                raise DataError(
                    f"{site.name}: no {part} rows of {len(site)} in all; choose another test_share or seed, or "
                    "merge its rows with another site's"
                )
    fitted = fit_preprocessing(sites, schema)
    notes = [
        f"{site.name}: {site.unlabelled} rows without {schema.target} were dropped" for site in every if site.unlabelled
    ]
    notes += [f"{site.name}: dropped, it has only {len(site)} rows" for site in every if len(site) < min_samples]
    fitted = fitted.model_copy(update={"notes": (*notes, *fitted.notes)})
    names = [site.name for site in sites]
    classes = schema.classes or ()
    scenario = from_arrays([site.arrays(fitted) for site in sites], len(classes), names)
    unit = fitted.predicted.scale if fitted.predicted is not None else 1.0
    clients = [replace(client, unit=unit) for client in scenario.clients]
    return replace(scenario, clients=clients, name=f"tables {path.stem}", class_names=classes, preprocessing=fitted)
