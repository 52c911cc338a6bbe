"""What the columns of the sites' tables mean: a TOML file that all sites agree on.

target = "diagnosis"
classes = ["benign", "malignant"]
id = "patient"                        # rows of one patient are never split between training and test
missing = ["", "NA", "?"]             # texts that stand for no value

[sites]
north = "north.csv"                   # a CSV or Parquet file, or a folder of them, relative to this file
south = "south/"

[features]
age = "number"
ward = ["A", "B", "C"]                # a category, with the values that count
drug = "category"                     # a category whose values the sites report

Where a number is to be predicted, target_type = "number" stands in place of classes.
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpac.data.tables import MISSING, Table, files_of, read_table
from fedpac.errors import ConfigError, DataError, unknown
from fedpac.strict import checked, one_line_lists, shown

LONGEST = 1 << 20  # bytes of a schema
MANY = 50  # different texts that are no longer a category
ODD_SHARE = 0.1  # of values that are no numbers, below which a column is likely to be one of numbers
TARGETS = ("target", "label", "class", "diagnosis", "outcome", "y")
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Feature: TypeAlias = Literal["number", "category"] | Annotated[tuple[Name, ...], Field(min_length=1)]


class Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Name
    classes: Annotated[tuple[Name, ...], Field(min_length=2)] | None = None
    target_type: Literal["class", "number"] = "class"
    id: Name | None = None
    missing: tuple[str, ...] = MISSING
    min_count: Annotated[int, Field(ge=1, description="sites do not report values backed by fewer rows than this")] = 5
    sites: Annotated[dict[Name, Path], Field(min_length=1)]
    features: Annotated[dict[Name, Feature], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.classes is None and not self.numeric:
            raise ValueError(
                f"`classes` is missing: list the values of '{self.target}', or say target_type = \"number\"."
            )
        if self.classes is not None and self.numeric:
            raise ValueError('`classes` means nothing with target_type = "number": leave one of them out.')
        for column in (self.target, self.id):
            if column in self.features:
                raise ValueError(f"'{column}' is both a feature and the target or id: the model would learn from it.")
        lists = {"classes": self.classes or (), **{k: f for k, f in self.features.items() if not isinstance(f, str)}}
        for name, values in lists.items():
            if twice := [v for i, v in enumerate(values) if v in values[:i]]:
                raise ValueError(f"{name} has '{twice[0]}' twice.")
            if gone := [v for v in values if v in self.missing]:
                raise ValueError(f"{name} has '{gone[0]}', which is listed in `missing`.")
        return self

    @property
    def numeric(self) -> bool:
        """Whether the target is a number."""
        return self.target_type == "number"

    @property
    def counted(self) -> dict[str, Feature]:
        """The columns that sites report statistics of: the features, then the target if it is a number."""
        return {**self.features, **({self.target: "number"} if self.numeric else {})}


def read_schema(path: Path) -> Schema:
    """The schema; the paths of its sites are made relative to it."""
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        schema = checked(Schema, tomllib.loads(text.decode()))
    except FileNotFoundError:
        raise DataError(
            f"there is no schema {path}; draft one with 'fedpac data describe FILES --out {path}'"
        ) from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from None
    except (OSError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from None
    return schema.model_copy(update={"sites": {name: path.parent / file for name, file in schema.sites.items()}})


def _explain(error: ValidationError) -> str:
    problem = min(
        error.errors(), key=lambda p: p["type"] != "extra_forbidden"
    )  # a misspelt key, before that it is missing
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden" and len(path) == 1:
        return unknown("key", path[0], Schema.model_fields)
    if path[:1] == ["features"] and len(path) > 1:
        return f'feature \'{path[1]}\': expected "number", "category", or a list of different categories'
    if problem["type"] == "missing":
        return f"`{'.'.join(path)}` is missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(path)} = {shown(problem['input'])}: {message.lower()}" if path else message


# --- drafting one -------------------------------------------------------------------------------------------------


def draft(sites: Sequence[Path], folder: Path, target: str | None = None, id: str | None = None) -> str:
    """A schema for these files, one for each site, to be checked by a person: types are guessed from the values."""
    names = _site_names(sites)
    tables = [read_table(path, MISSING) for path in sites]
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    for wanted in (target, id):
        if wanted is not None and wanted not in columns:
            raise DataError(unknown("column", wanted, columns))
    target = target or _guess_target(columns)
    id = id or next((c for c in columns if c.lower() == "id" or c.lower().endswith(("_id", "patient"))), None)
    features: dict[str, Any] = {}
    files = "1 file" if len(sites) == 1 else f"{len(sites)} files"
    remarks = [f"# Drafted from {files}. Check it: column types are guessed from the values."]
    for column in columns:
        if column in (target, id):
            continue
        kind, said = _guess_kind([table for table in tables if column in table], column)
        features |= {column: kind} if kind is not None else {}
        remarks += said
        if lacking := [name for name, table in zip(names, tables, strict=True) if column not in table]:
            remarks.append(f"# {_quoted(column)} is missing at {', '.join(lacking)}.")
    predicted, remark = _predicted(tables, target)
    remarks += remark
    values: Mapping[str, Any] = {
        "target": target, **predicted, **({"id": id} if id else {}), "missing": list(MISSING),
        "sites": {name: _relative(path, folder) for name, path in zip(names, sites, strict=True)}, "features": features,
    }  # fmt: skip
    if not features:
        raise DataError(f"there is no feature column besides '{target}'")
    if not id:
        remarks.append('# No id: every row counts as a separate patient. If that is wrong, set id = "COLUMN".')
    return "\n".join([*remarks, "", one_line_lists(tomli_w.dumps(values))])


def _guess_kind(tables: Sequence[Table], column: str) -> tuple[Any, list[str]]:
    """What the schema says of a feature, None if it is to be left out; and what a person should know of it."""
    found, name = _values(tables, column), _quoted(column)
    if not found:
        return None, [f"# Left out: {name}, which has no values."]
    if all(table.is_date(column) for table in tables):
        return None, [f"# Left out: {name}, dates. Turn them into numbers first, such as days since a first visit."]
    same = [f"# {name} is {_quoted(found[0])} everywhere."] if len(found) == 1 else []
    odd = [text for table in tables for text in table.not_numbers(column)]
    if not odd:
        return "number", same
    if len(odd) < ODD_SHARE * sum(text is not None for table in tables for text in table.texts(column)):
        same = [
            f"# {name}: all values are numbers but for {len(odd)}, such as {_quoted(odd[0])}. If these stand for no "
            'value, add them to `missing` and make the column a "number".'
        ]
    if len(found) > MANY:
        return None, [f"# Left out: {name}, text with {len(found)} different values.", *same]
    twins = _differ_in_case(found)
    return found, same + [f"# {name}: {_quoted(a)} and {_quoted(b)} count as two categories." for a, b in twins]


def _differ_in_case(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for a, b in itertools.combinations(texts, 2) if a.casefold() == b.casefold()]


def _predicted(tables: Sequence[Table], target: str) -> tuple[dict[str, Any], list[str]]:
    """What the schema says of the target, and what a person should know of it."""
    values = _values(tables, target)
    numeric = all(table.is_numeric(target) for table in tables if target in table)
    if numeric and len(values) > MANY:
        return {"target_type": "number"}, [f"# {_quoted(target)} has {len(values)} values: it is taken for a number."]
    if not 2 <= len(values) <= MANY:
        raise DataError(f"column '{target}' has {len(values)} different values; name the one to predict with --target")
    for one, other in _differ_in_case(values):
        raise DataError(f"column '{target}': '{one}' and '{other}' differ in case only; write them alike at all sites")
    odd = f'# If {_quoted(target)} is a number to predict, put target_type = "number" in place of classes.'
    return {"classes": values}, [odd] if numeric and len(values) > 2 else []


def _guess_target(columns: Sequence[str]) -> str:
    found = [column for column in columns if column.lower() in TARGETS]
    if len(found) != 1:
        raise DataError(f"name the column to predict with --target; found {', '.join(columns)}")
    return found[0]


def _values(tables: Sequence[Table], column: str) -> list[str]:
    texts = [table.texts(column) for table in tables if column in table]
    return sorted({text for some in texts for text in some if text is not None})


def _site_names(sites: Sequence[Path]) -> list[str]:
    for path in sites:
        files_of(path)  # says what is wrong with it
    names = [path.stem if path.is_file() else path.resolve().name for path in sites]
    if len(set(names)) < len(names):
        raise DataError(f"two sites have the same name: {', '.join(sorted(names))}; rename a file")
    return names


def _relative(path: Path, folder: Path) -> str:
    try:
        return str(path.resolve().relative_to(folder.resolve()))
    except ValueError:
        return str(path.resolve())


def _quoted(text: str) -> str:
    """On one line, whatever is in it: it goes into a comment."""
    return ascii(text)
