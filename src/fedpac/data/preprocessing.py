"""From raw rows to numbers: fitted by sites that report sums, counts and category lists, and never a row.

Two questions go round. The first is how many values a column has and what they add up to, and which categories there
are; the second, with the common means known, how far values are from them. Merging the answers gives what
scikit-learn's StandardScaler and OneHotEncoder would find in the pooled rows.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpac.data.schema import Schema
from fedpac.data.tables import Table
from fedpac.errors import DataError
from fedpac.extras import library
from fedpac.message import Message

Floats: TypeAlias = NDArray[np.float64]
LARGEST = 1e100  # whose square, often added, is still a number


class Number(BaseModel):
    """(value - mean) / scale; a missing value becomes the mean, so 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["number"] = "number"
    name: str
    mean: Annotated[float, Field(allow_inf_nan=False)]
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @property
    def width(self) -> int:
        return 1

    def encode(self, table: Table) -> Floats:
        scaled = (table.numbers(self.name) - self.mean) / self.scale
        return np.where(np.isnan(scaled), 0.0, scaled)[:, None]


class Category(BaseModel):
    """One-hot; a missing value, or one that training did not know, sets none of the columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["category"] = "category"
    name: str
    categories: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.categories)

    def encode(self, table: Table) -> Floats:
        texts = np.array(table.texts(self.name), dtype=object)
        codes: Floats = (texts[:, None] == np.array(self.categories, dtype=object)[None]).astype(np.float64)
        return codes


Column: TypeAlias = Annotated[Number | Category, Field(discriminator="type")]


class Preprocessing(BaseModel):
    """What makes a network's input of raw rows, and classes of a target. Plain JSON, to be looked at and kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    classes: tuple[str, ...]  # none where the target is a number
    predicted: Number | None = None  # then, how it was scaled
    missing: tuple[str, ...]
    columns: tuple[Column, ...]
    absent: dict[str, tuple[str, ...]] = {}  # the columns that a site does not have
    notes: tuple[str, ...] = ()  # what was out of the ordinary when it was fitted

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        if not self.width:
            raise ValueError("no feature column is left")
        return self

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def inputs(self) -> list[str]:
        """What each number of the network's input is: 'age', 'ward = A', ..."""
        names = []
        for column in self.columns:
            names += [f"{column.name} = {c}" for c in column.categories] if column.type == "category" else [column.name]
        return names

    def table(self, rows: object, name: str = "the rows") -> Table:
        return rows if isinstance(rows, Table) else Table.of(rows, self.missing, name)

    def apply(self, rows: object, absent: Sequence[str] = ()) -> NDArray[np.float32]:
        """(rows, width) from a table of raw values; columns in any order, and more than are needed.

        absent: columns that may be left out, because the model's own site does not have them.
        """
        table = self.table(rows)
        if not len(table):
            raise DataError(f"{table.name}: there are no rows.")
        lacking = [c.name for c in self.columns if c.name not in table and c.name not in absent]
        if lacking:
            what = "column" if len(lacking) == 1 else "columns"
            raise DataError(f"{table.name}: missing {what} {', '.join(lacking)}; expected {self._names()}")
        parts = [c.encode(table) if c.name in table else np.zeros((len(table), c.width)) for c in self.columns]
        x = np.concatenate(parts, axis=1).astype(np.float32)
        if not np.isfinite(x).all():
            column = self.inputs[int(np.flatnonzero(~np.isfinite(x).all(axis=0))[0])]
            raise DataError(f"{table.name}: {column} has a value that is too large")
        return x

    def labels(self, table: Table) -> NDArray[np.int64] | Floats:
        """The class of every row, -1 where the target is missing; of a number its value, or NaN."""
        if self.target not in table:
            raise DataError(
                f"{table.name} has no column '{self.target}', the target; it has {', '.join(table.columns)}"
            )
        if self.predicted is not None:
            return table.numbers(self.target)
        number = {name: k for k, name in enumerate(self.classes)}
        texts = table.texts(self.target)
        if strange := sorted({text for text in texts if text is not None and text not in number}):
            raise DataError(f"{table.name}: {self.target} is '{strange[0]}'; the classes are {', '.join(self.classes)}")
        return np.array([-1 if text is None else number[text] for text in texts], dtype=np.int64)

    def to_sklearn(self) -> Any:
        """The same as a fitted ColumnTransformer of scikit-learn's, for DataFrames: numbers (NaN: none) and texts."""
        return column_transformer(self.columns)

    def _names(self) -> str:
        return ", ".join(column.name for column in self.columns)

    def to_json(self) -> str:
        left_out = {"predicted"} if self.predicted is None else None
        return self.model_dump_json(indent=2, exclude=left_out) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> "Preprocessing":
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]
            raise DataError(f"{name} is not a preprocessing file: {problem['loc']}: {problem['msg']}") from None


def column_transformer(columns: Sequence[Number | Category]) -> Any:
    """Fitted on two made-up rows, since scikit-learn has no other way; then given the statistics of the sites."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    pandas = library("pandas", "tables")
    steps: list[Any] = []
    rows: dict[str, list[Any]] = {}
    for i, column in enumerate(columns):
        if isinstance(column, Number):
            step = make_pipeline(StandardScaler(), SimpleImputer(strategy="constant", fill_value=0.0))
            rows[column.name] = [column.mean - column.scale, column.mean + column.scale]
        else:
            step = OneHotEncoder(categories=[list(column.categories)], handle_unknown="ignore", sparse_output=False)
            rows[column.name] = [*column.categories, "", ""][:2]
        if column.width:
            steps.append((str(i), step, [column.name]))
    made = ColumnTransformer(steps).fit(pandas.DataFrame(rows))
    for i, column in enumerate(columns):
        if isinstance(column, Number):
            scaler = made.named_transformers_[str(i)][0]
            scaler.mean_, scaler.scale_ = np.array([column.mean]), np.array([column.scale])
            scaler.var_ = scaler.scale_**2
    return made


# --- at a site ----------------------------------------------------------------------------------------------------


def count(table: Table, schema: Schema) -> Message:
    """The first answer: of every feature, how many values there are; of numbers their sum, of categories the rows.

    Features go by their position in the schema. Where they are so few that a sum would tell of single rows, there are
    no values.
    """
    values, sums, categories = [], [], {}
    for i, (name, kind) in enumerate(schema.counted.items()):
        if kind == "number":
            numbers = _numbers(table, name, schema)
            values.append(len(numbers))
            sums.append(math.fsum(numbers))
        else:
            counts = _texts(table, name, schema)
            listed = kind if isinstance(kind, tuple) else sorted(counts)
            categories[str(i)] = _packed({text: n for text in listed if (n := counts[text]) >= schema.min_count})
            values.append(counts.total())
            sums.append(0.0)
    return Message(
        rows=len(table),
        present=torch.tensor([name in table for name in schema.counted]),
        values=torch.tensor(values),
        sums=torch.tensor(sums, dtype=torch.float64),
        categories=categories,
    )


def deviate(table: Table, schema: Schema, down: Message) -> Message:
    """The second: of every number, the squared deviations from the common mean, added up."""
    squares = [
        math.fsum((_numbers(table, name, schema) - float(mean)) ** 2) if kind == "number" else 0.0
        for (name, kind), mean in zip(schema.counted.items(), down.tensor("means"), strict=True)
    ]
    return Message(squares=torch.tensor(squares, dtype=torch.float64))


def _numbers(table: Table, column: str, schema: Schema) -> Floats:
    values = table.numbers(column) if column in table else np.empty(0)
    values = values[~np.isnan(values)]
    if (np.abs(values) > LARGEST).any():
        raise DataError(f"{table.name}: {column} has a value that is too large; expected at most {LARGEST:g}")
    return values if len(values) >= schema.min_count else np.empty(0)


def _texts(table: Table, column: str, schema: Schema) -> Counter[str]:
    counts = Counter(text for text in (table.texts(column) if column in table else ()) if text is not None)
    return counts if counts.total() >= schema.min_count else Counter()


def _packed(counts: Mapping[str, int]) -> torch.Tensor:
    """As bytes: a message holds tensors."""
    return torch.frombuffer(bytearray(json.dumps(counts).encode()), dtype=torch.uint8)


def _unpacked(part: torch.Tensor, site: str) -> dict[str, int]:
    try:
        counts = json.loads(part.numpy().tobytes())
    except ValueError:
        counts = None
    if not isinstance(counts, dict) or not all(isinstance(v, int) for v in counts.values()):
        raise DataError(f"{site}: its reply contains no list of categories")
    return counts


# --- at the server ------------------------------------------------------------------------------------------------


def means(answers: Mapping[str, Message]) -> Message:
    """What the sites need to know for the second answer."""
    values, sums = (torch.stack([up.tensor(part) for up in answers.values()]).sum(0) for part in ("values", "sums"))
    return Message(means=sums / values.clamp(min=1))


def merge(schema: Schema, counts: Mapping[str, Message], deviations: Mapping[str, Message]) -> Preprocessing:
    """The answers of all sites, by name, made into one preprocessing."""
    centre = means(counts).tensor("means")
    columns: list[Number | Category] = []
    notes: list[str] = []
    absent: dict[str, tuple[str, ...]] = dict.fromkeys(counts, ())
    for i, (name, kind) in enumerate(schema.counted.items()):
        values = {site: int(up.tensor("values")[i]) for site, up in counts.items()}
        lacking = [site for site, up in counts.items() if not up.tensor("present")[i]]
        absent |= {site: (*absent[site], name) for site in lacking}
        if lacking:
            notes.append(f"{name}: not a column at {', '.join(lacking)}; counts as missing there")
        if silent := [site for site, n in values.items() if not n and site not in lacking]:
            notes.append(f"{name}: fewer than {schema.min_count} values at {', '.join(silent)}; not counted")
        column: Number | Category
        if kind == "number":
            squares = sum(float(up.tensor("squares")[i]) for up in deviations.values())
            column, remarks = _number(name, float(centre[i]), squares, sum(values.values()))
        else:
            known = {site: _unpacked(up.weights("categories")[str(i)], site) for site, up in counts.items()}
            column, remarks = _category(name, kind, values, known)
        columns.append(column)
        notes += remarks
    predicted = columns.pop() if schema.numeric else None
    gaps = {site: names for site, names in absent.items() if names}
    try:
        return Preprocessing(
            target=schema.target, classes=schema.classes or (), predicted=predicted, missing=schema.missing,
            columns=tuple(columns), absent=gaps, notes=tuple(notes),
        )  # fmt: skip
    except ValidationError:
        raise DataError("no feature of the schema has enough values at any site") from None


def _number(name: str, mean: float, squares: float, values: int) -> tuple[Number, list[str]]:
    if not values:
        return Number(name=name, mean=0.0, scale=1.0), [f"{name}: no site has enough values; taken as it is"]
    scale = math.sqrt(squares / values)
    if scale <= 1e-12 * abs(mean) or scale < 1e-150:  # what rounding leaves of a constant
        return Number(name=name, mean=mean, scale=1.0), [f"{name}: the same value everywhere ({mean:g})"]
    return Number(name=name, mean=mean, scale=scale), []


def _category(
    name: str, kind: object, values: Mapping[str, int], known: Mapping[str, Mapping[str, int]]
) -> tuple[Category, list[str]]:
    told = sorted({text for counts in known.values() for text in counts})
    categories = kind if isinstance(kind, tuple) else tuple(told)
    notes = []
    for text in categories:
        sites = [site for site, counts in known.items() if text in counts]
        if not sites:
            notes.append(f"{name}: no site has enough rows of category '{text}'")
        elif len(sites) == 1 < len(known):
            notes.append(f"{name}: only {sites[0]} knows category '{text}'")
    if others := [site for site, n in values.items() if n > sum(known[site].values())]:
        notes.append(f"{name}: rare or unlisted categories at {', '.join(others)} count as missing")
    if len(told) == 1:
        notes.append(f"{name}: the same value everywhere ('{told[0]}')")
    return Category(name=name, categories=categories), notes
