"""Tables as sites have them, CSV or Parquet: values are read as they stand, and mean what the schema says."""

import csv
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpac.data.untrusted import check_expansion, readable
from fedpac.errors import DataError
from fedpac.extras import library
from fedpac.strict import shown

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?")
LONGEST_HEADER = 1 << 20
INDEX = re.compile(r"__index_level_\d+__")  # the rows' numbers, which pandas writes into Parquet files
TRUTH = {"true": 1.0, "false": 0.0}
DATE = r"\d{4}-\d\d?-\d\d?([ T].*)?|\d\d?[./]\d\d?[./]\d{4}( .*)?"
DECIMAL_COMMA, DECIMAL_POINT = r"^(\s*[+-]?\d+),(\d+(?:[eE][+-]?\d+)?\s*)$", r"\d\.\d"


class Table:
    """Named columns of raw values. `name` is for messages; it never shows more than the value that is wrong."""

    def __init__(self, frame: Any, missing: Sequence[str], name: str) -> None:
        self.frame = frame
        self.missing = tuple(missing)
        self.name = name

    @classmethod
    def of(cls, rows: Any, missing: Sequence[str], name: str = "the rows") -> "Table":
        """From a DataFrame, from columns by name, or from a list with a dict for every row."""
        pandas = library("pandas", "tables")
        try:
            return cls(pandas.DataFrame(rows).reset_index(drop=True), missing, name)
        except (TypeError, ValueError) as error:
            raise DataError(f"{name} are no table: {error}") from None

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: object) -> bool:
        return column in self.frame.columns

    @property
    def columns(self) -> list[str]:
        return list(self.frame.columns)

    def rows(self, chosen: NDArray[np.bool_]) -> "Table":
        return Table(self.frame.loc[chosen].reset_index(drop=True), self.missing, self.name)

    def texts(self, column: str) -> list[str | None]:
        """The column as text; None where there is no value. Whole numbers have no decimal point, however stored."""
        values = self.frame[column]
        if values.dtype.kind == "f" and (values.dropna() % 1 == 0).all():
            values = values.astype("Int64")
        texts = values.astype("string").str.strip()
        return [None if absent else text for text, absent in zip(texts, self._absent(texts), strict=True)]

    def numbers(self, column: str) -> NDArray[np.float64]:
        """The column as numbers; NaN where there is no value."""
        numbers, wrong = self._parsed(column)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = shown(str(self.frame[column].iloc[row]))
            raise DataError(
                f"{self.name}, row {row + 1}: {column} = {value} is not a finite number; if it marks a missing value, "
                "add it to `missing` in the schema; if the column is not numeric, declare it a category"
            )
        return numbers

    def is_numeric(self, column: str) -> bool:
        return not self._parsed(column)[1].any()

    def not_numbers(self, column: str) -> list[str]:
        """The values that are none."""
        return [str(value) for value in self.frame[column][self._parsed(column)[1]]]

    def is_date(self, column: str) -> bool:
        texts = self.frame[column].astype("string").str.strip()
        return bool(texts[~self._absent(texts)].str.fullmatch(DATE).all())

    def _parsed(self, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Numbers, and where there is a value that is none. A column of true and false is one of 1 and 0."""
        pandas = library("pandas", "tables")
        values = self.frame[column]
        if values.dtype.kind not in "biuf":
            texts = values.astype("string").str.strip()
            values = texts.mask(self._absent(texts))
            lower = values.str.lower()
            values = lower.map(TRUTH) if lower.dropna().isin(TRUTH).all() else values
        numbers = pandas.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers, ~np.isfinite(numbers) & ~values.isna().to_numpy()

    def _absent(self, texts: Any) -> NDArray[np.bool_]:
        absent: NDArray[np.bool_] = (texts.isna() | texts.isin(self.missing)).to_numpy(dtype=bool)
        return absent


def read_table(path: Path, missing: Sequence[str]) -> Table:
    """One site's rows: of a file, or of all files in a folder; columns may come in any order."""
    pandas = library("pandas", "tables")
    frames = [READERS[file.suffix.lower()](file) for file in files_of(path)]
    frame = pandas.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    if not len(frame):
        raise DataError(f"{path} has no rows.")
    return Table(frame, missing, str(path))


def files_of(path: Path) -> list[Path]:
    """The tables that the path stands for."""
    kinds = f"expected {' or '.join(READERS)}"
    if path.is_dir():
        with readable(path, "folder"):
            files = sorted(f for f in path.iterdir() if f.suffix.lower() in READERS and not f.name.startswith("."))
        if not files:
            raise DataError(f"the folder {path} contains no tables; {kinds} files.")
        return files
    if not path.is_file():
        raise DataError(f"there is no file or folder {path}.")
    if path.suffix.lower() not in READERS:
        raise DataError(f"{path} is not a table; {kinds}.")
    return [path]


def _read_csv(path: Path) -> Any:
    pandas = library("pandas", "tables")
    with readable(path, "CSV file"), _in_utf8(path):
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = "\n"
            while header and not header.strip():  # pandas leaves out blank lines too
                header = file.readline(LONGEST_HEADER)
        if not header:
            raise DataError(f"{path} is empty; the first line must name the columns.")
        separator = max(",;\t", key=header.count)
        _check_names(next(csv.reader([header], delimiter=separator), []), path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # it would drop what rows have too much
            frame = pandas.read_csv(
                path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False
            ).rename(columns=str.strip)
        return frame.apply(_with_decimal_points) if separator == ";" and len(frame) else frame


@contextmanager
def _in_utf8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{path} is not in UTF-8: it has the byte 0x{byte:02x}. Save it as 'CSV UTF-8'.") from None


def _with_decimal_points(column: Any) -> Any:
    """Where semicolons part the columns, commas stand for decimal points, unless there are points in numbers too."""
    if column.str.contains(DECIMAL_POINT).any():
        return column
    return column.str.replace(DECIMAL_COMMA, r"\1.\2", regex=True)


def _read_parquet(path: Path) -> Any:
    pandas, parquet = library("pandas", "tables"), library("pyarrow.parquet", "tables")
    with readable(path, "Parquet file"):
        about = parquet.read_metadata(path)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        cells = 8 * about.num_rows * about.num_columns  # a column of one repeated value takes no room in the file
        check_expansion(path, path.stat().st_size, max(cells, sum(group.total_byte_size for group in groups)))
        frame = pandas.DataFrame(parquet.ParquetFile(path).read().to_pandas(ignore_metadata=True))
        frame = frame.drop(columns=[name for name in frame.columns if INDEX.fullmatch(name)])
    _check_names(list(frame.columns), path)
    return frame


READERS: Mapping[str, Callable[[Path], Any]] = {".csv": _read_csv, ".parquet": _read_parquet}


def _check_names(columns: Sequence[str], path: Path) -> None:
    names = [column.strip() for column in columns]
    for name in _repeated(names):
        raise DataError(f"{path}: two columns are called {shown(name)}; rename one.")
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} has no name; the first line must name all columns.")


def _repeated(names: Sequence[str]) -> Iterator[str]:
    yield from (name for i, name in enumerate(names) if name in names[:i])
