"""Tables as sites export them: decimal commas, truth values, dates, empty columns, odd texts among numbers."""

import numpy as np
import pandas as pd
import pytest

import fedpac as library
from fedpac.data.schema import draft
from fedpac.data.tables import MISSING, Table, read_table
from fedpac.errors import DataError


def written(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("x;y\n1,5;a\n-2;b\n+0,25e1;c\nk.A.;d\n", [1.5, -2, 2.5, np.nan]),  # a marker may have points
        ("x\ty\n1.5\ta\n\t\n", [1.5, np.nan]),
        ("\n  \nx;y\n1,5;a\n", [1.5]),  # blank lines come before the header
    ],
)
def test_decimal_commas_between_semicolons(tmp_path, text, numbers):
    table = read_table(written(tmp_path / "t.csv", text, "utf-8-sig"), (*MISSING, "k.A."))
    np.testing.assert_array_equal(table.numbers("x"), numbers)


@pytest.mark.parametrize("text", ['x,y\n"1,234",a\n', "x;y\n1,234;a\n5.5;b\n", "x;y\n1.234,5;a\n"])
def test_commas_that_may_part_thousands_are_not_guessed(tmp_path, text):
    with pytest.raises(DataError, match=r"row 1: x = '1.*' is not a finite number"):
        read_table(written(tmp_path / "t.csv", text), MISSING).numbers("x")


def test_true_and_false_are_numbers_however_they_are_stored(tmp_path):
    pd.DataFrame({"smoker": [True, None, False], "ill": ["a", "b", "a"]}).to_parquet(tmp_path / "one.parquet")
    pd.DataFrame({"smoker": [True, False], "ill": ["a", "b"]}).to_parquet(tmp_path / "two.parquet")
    written(tmp_path / "three.csv", "smoker,ill\nTRUE,a\nfalse,b\nNA,b\n")
    files = [tmp_path / name for name in ("one.parquet", "two.parquet", "three.csv")]
    found = [read_table(file, MISSING).numbers("smoker").tolist() for file in files]
    np.testing.assert_equal(found, [[1, np.nan, 0], [1, 0], [1, 0, np.nan]])
    assert 'smoker = "number"' in draft(files, tmp_path, target="ill")
    mixed = Table.of({"smoker": ["true", "3"]}, MISSING)
    assert not mixed.is_numeric("smoker")


def test_a_draft_says_what_it_does_with_odd_columns(tmp_path):
    frame = pd.DataFrame({
        "visit": ["2020-01-02", "2021-03-04 10:00"] * 30, "discharge": ["3.4.2020", "12/11/2021"] * 30,
        "empty": [None] * 60, "version": ["7"] * 60, "ward": ["icu", "ICU", "A"] * 20,
        "lab": [f"{i % 20}" for i in range(59)] + ["<0.5"], "age": range(60), "ill": ["no", "yes"] * 30,
    })  # fmt: skip
    frame.to_csv(tmp_path / "a.csv", index=False)
    text = draft([tmp_path / "a.csv"], tmp_path, target="ill")
    remarks, features = text.split("[features]\n")
    assert "Drafted from 1 file." in remarks
    assert "Left out: 'visit', dates" in remarks
    assert "Left out: 'discharge', dates" in remarks
    assert "Left out: 'empty', which has no values" in remarks
    assert "'version' is '7' everywhere" in remarks
    assert "'lab': all values are numbers but for 1, such as '<0.5'" in remarks
    assert "'ward': 'ICU' and 'icu' count as two categories" in remarks
    assert [line.split(" = ")[0] for line in features.splitlines()] == ["version", "ward", "lab", "age"]


def test_classes_that_differ_in_case_are_no_draft(tmp_path):
    written(tmp_path / "a.csv", "x,ill\n1,yes\n2,no\n")
    written(tmp_path / "b.csv", "x,ill\n1,Yes\n2,no\n")
    with pytest.raises(DataError, match="column 'ill': 'Yes' and 'yes' differ in case only"):
        draft([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path, target="ill")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_named(tmp_path, encoding):
    with pytest.raises(DataError, match=r"is not in UTF-8: it has the byte 0x.* Save it as"):
        read_table(written(tmp_path / "t.csv", "x,stadt\n1,Zürich\n", encoding), MISSING)


def test_untidy_files_from_schema_to_predictions(fedpac, tmp_path):
    """The whole way, with a row whose outcome is still open and a model that says so."""
    random = np.random.default_rng(0)
    age = random.normal(60, 10, 60).round(1)
    frame = pd.DataFrame({"id": range(60), "age": age, "smoker": age > 55, "ill": np.where(age > 60, "yes", "no")})
    frame.to_parquet("north.parquet")
    frame.to_csv("south.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig", lineterminator="\r\n")
    assert fedpac("data", "describe", "north.parquet", "south.csv", "--target", "ill", "--out", "s.toml")[0] == 0
    how = ["--engine", "serial", "--no-figures", "--rounds", 3, "--set", "training.lr=0.1"]
    assert fedpac("run", "--tables", "s.toml", *how, "--out", "r")[0] == 0
    assert fedpac("export", "r", "--client", "south", "--out", "m", "--no-onnx")[0] == 0
    one, other = (fedpac("predict", "m", file) for file in ("north.parquet", "south.csv"))
    assert one == other  # the same rows, however they are stored
    assert "of 60 samples" in one[2]

    frame.assign(ill="pending").to_csv("new.csv", index=False)
    code, text, complaint = fedpac("predict", "m", "new.csv")
    assert (code, text) == (0, one[1])
    assert "not compared" in complaint
    assert "ill is 'pending'; the classes are no, yes" in complaint
    with pytest.raises(DataError, match="missing columns age, smoker; expected age, smoker"):
        library.load_model("m").predict([{"weight": 1}])
