"""Tables of sites: read as they are, split by patient, and prepared by statistics that are never pooled rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedpac.config import make_config
from fedpac.data import preprocessing
from fedpac.data.preprocessing import Preprocessing
from fedpac.data.schema import Schema, draft, read_schema
from fedpac.data.table_sites import TableSite, fit_preprocessing, from_tables
from fedpac.data.tables import MISSING, Table, read_table
from fedpac.errors import ConfigError, DataError, FedpacError
from fedpac.runs.execute import resume, run
from small_run import exact

SCHEMA = """
target = "ill"
classes = ["no", "yes"]
id = "patient"
[sites]
{sites}
[features]
age = "number"
dose = "number"
ward = "category"
"""


def rows(seed: int, n: int = 60, wards: tuple[str, ...] = ("A", "B"), patients: int = 40) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    dose = random.normal(1e4, 3, n)
    dose[random.random(n) < 0.2] = np.nan
    age = random.normal(60 + seed, 10, n)
    return pd.DataFrame({
        "patient": [f"p{i}" for i in random.integers(0, patients, n)],
        "age": age, "dose": dose, "ward": random.choice(wards, n),
        "ill": np.where(age + random.normal(0, 5, n) > 60 + seed, "yes", "no"),
    })  # fmt: skip


@pytest.fixture
def hospitals(tmp_path: Path):
    """Write frames, one for each site, and a schema; gives the schema's path."""

    def write(schema: str = SCHEMA, **frames: pd.DataFrame) -> Path:
        for name, frame in frames.items():
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        sites = "\n".join(f'{name} = "{name}.csv"' for name in frames)
        (tmp_path / "schema.toml").write_text(schema.format(sites=sites))
        return tmp_path / "schema.toml"

    return write


def three(hospitals, **changes: pd.DataFrame) -> Path:
    frames = {"a": rows(0), "b": rows(1, 90, ("B", "C")), "c": rows(2, 40)}
    return hospitals(**(frames | changes))


# --- statistics ---------------------------------------------------------------------------------------------------


def pooled_statistics(frames: list[pd.DataFrame]) -> np.ndarray:
    """What scikit-learn makes of all rows in one place."""
    pool = pd.concat(frames)
    numbers = np.nan_to_num(StandardScaler().fit_transform(pool[["age", "dose"]]))
    return np.hstack([numbers, OneHotEncoder(sparse_output=False).fit_transform(pool[["ward"]])])


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=5, unique=True),
    sizes=st.lists(st.integers(40, 80), min_size=5, max_size=5),
    shift=st.sampled_from([0.0, -1e6, 1e9]),
)
def test_federated_statistics_are_those_of_the_pooled_rows_and_no_message_holds_a_row(seeds, sizes, shift):
    frames = [rows(s, n).assign(age=lambda f: f["age"] + shift) for s, n in zip(seeds, sizes, strict=False)]
    schema = Schema(
        target="ill", classes=("no", "yes"), sites={"x": Path("x")}, min_count=5,
        features={"age": "number", "dose": "number", "ward": "category"},
    )  # fmt: skip
    tables = {f"site {i}": Table(frame, MISSING, "rows") for i, frame in enumerate(frames)}
    counts = {name: preprocessing.count(table, schema) for name, table in tables.items()}
    down = preprocessing.means(counts)
    deviations = {name: preprocessing.deviate(table, schema, down) for name, table in tables.items()}
    fitted = preprocessing.merge(schema, counts, deviations)

    mine = np.vstack([fitted.apply(table) for table in tables.values()])
    np.testing.assert_allclose(mine, pooled_statistics(frames), rtol=1e-5, atol=1e-5)
    values = {v for frame in frames for column in ("age", "dose") for v in frame[column].dropna()}
    for message in [*counts.values(), down, *deviations.values()]:
        tensors, _, _ = message.flat()
        assert not values & {float(v) for t in tensors.values() for v in t.flatten()}
        assert all(len(t) == len(schema.features) for name, t in tensors.items() if not name.startswith("categories"))
    names = {
        text for message in counts.values() for text in bytes(message.weights("categories")["2"]).decode().split('"')
    }
    assert {"A", "B"} <= names
    assert not any(patient in name for name in names for patient in frames[0]["patient"])


def test_too_few_values_to_hide_in_are_not_told_of(hospitals):
    few = rows(2)
    few.loc[2:, "dose"] = np.nan  # at most two training rows have one
    few.loc[0, "ward"] = "rare disease"
    path = three(hospitals, c=few)
    schema = read_schema(path)
    site = TableSite("c", 2, schema, 0, 0.2)
    assert site.count().tensor("values")[1] == 0
    assert b"rare" not in site.count().to_bytes()
    notes = "\n".join(from_tables(path).preprocessing.notes)
    assert "dose: fewer than 5 values at c" in notes


def test_what_is_out_of_the_ordinary_is_handled_and_said(hospitals):
    frames = {name: rows(i).assign(unit="mg", level=0.1) for i, name in enumerate("abc")}
    frames["b"] = frames["b"].drop(columns="dose")
    frames["c"].loc[::4, "ward"] = "D"
    scenario = from_tables(hospitals(SCHEMA + 'unit = "category"\nlevel = "number"\n', **frames))
    fitted = scenario.preprocessing
    assert fitted.notes == (
        "dose: not a column at b; counts as missing there",
        "ward: only c knows category 'D'",
        "unit: the same value everywhere ('mg')",
        "level: the same value everywhere (0.1)",
    )
    assert fitted.absent == {"b": ("dose",)}
    assert fitted.inputs == ["age", "dose", "ward = A", "ward = B", "ward = D", "unit = mg", "level"]
    x, _ = scenario.clients[1].train.tensors()
    assert (x[:, 1] == 0).all()
    assert all((c.train.tensors()[0][:, -1].abs() < 1e-6).all() for c in scenario.clients)
    assert [c.name for c in scenario.clients] == ["a", "b", "c"]
    assert scenario.class_names == ("no", "yes")


def test_only_training_rows_are_counted(hospitals):
    path = three(hospitals)
    sites = [TableSite(name, i, read_schema(path), 0, 0.2) for i, name in enumerate("abc")]
    fitted = fit_preprocessing(sites, read_schema(path))
    ages = np.concatenate([site.train.numbers("age") for site in sites])
    assert fitted.columns[0].mean == pytest.approx(ages.mean(), rel=1e-14)


def test_it_is_scikit_learn_s(hospitals):
    """A fitted ColumnTransformer that makes the same numbers, of rows that training has never seen, too."""
    frames = {name: rows(i).assign(level=0.1, unit="mg") for i, name in enumerate("abc")}
    fitted = from_tables(hospitals(SCHEMA + 'level = "number"\nunit = ["mg", "g"]\n', **frames)).preprocessing
    new = rows(7, wards=("A", "B", "nobody knows it")).assign(level=3.0, unit="g")
    new.loc[::5, "age"] = np.nan
    new.loc[::7, "ward"] = None
    theirs = fitted.to_sklearn()
    np.testing.assert_allclose(theirs.transform(new), fitted.apply(new), rtol=1e-6, atol=1e-6)
    assert type(theirs).__name__ == "ColumnTransformer"
    assert theirs.named_transformers_["0"][0].mean_[0] == fitted.columns[0].mean


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lacking=st.sets(st.sampled_from(["age", "dose", "ward"]), max_size=3),
    only=st.sampled_from("abc"),
    constant=st.sampled_from([0.0, 0.1, -7.5, 1e9, 1e-9]),
)
def test_gaps_and_constants_give_finite_numbers_and_are_said(tmp_path_factory, seed, lacking, only, constant):
    """Whatever a site lacks, whoever knows a category alone, whatever is the same everywhere."""
    folder = tmp_path_factory.mktemp("gaps")
    frames = {name: rows(seed + i).assign(level=constant) for i, name in enumerate("abc")}
    frames["b"] = frames["b"].drop(columns=list(lacking))
    if "ward" in frames[only]:
        frames[only].loc[::3, "ward"] = "Z"
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    sites = "\n".join(f'{name} = "{name}.csv"' for name in frames)
    (folder / "schema.toml").write_text(SCHEMA.format(sites=sites) + 'level = "number"\n')
    scenario = from_tables(folder / "schema.toml")
    fitted = scenario.preprocessing
    notes = "\n".join(fitted.notes)
    for column in lacking:
        assert f"{column}: not a column at b; counts as missing there" in notes
    assert ("ward: only" in notes) == (only != "b" or "ward" not in lacking)
    assert f"level: the same value everywhere ({constant:g})" in notes
    for client in scenario.clients:
        x, _ = client.train.tensors()
        assert x.isfinite().all()
        assert (x[:, -1].abs() < 1e-5).all()  # the constant
    at_b = scenario.clients[1].train.tensors()[0]
    for column in lacking:
        places = [k for k, name in enumerate(fitted.inputs) if name.split(" = ")[0] == column]
        assert (at_b[:, places] == 0).all()


def test_it_is_saved_as_json_and_read_back(hospitals):
    fitted = from_tables(three(hospitals)).preprocessing
    assert Preprocessing.from_json(fitted.to_json(), "x") == fitted
    for broken in ("{}", "[", fitted.to_json().replace('"scale": ', '"scale": -')):
        with pytest.raises(DataError, match=r"p\.json is not a preprocessing file"):
            Preprocessing.from_json(broken, "p.json")


# --- splitting ----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**62), share=st.floats(0.1, 0.6), patients=st.integers(5, 60))
def test_no_patient_is_in_training_and_test_not_even_of_two_sites(tmp_path_factory, seed, share, patients):
    folder = tmp_path_factory.mktemp("split")
    for i, name in enumerate("ab"):
        rows(i, 80, patients=patients).to_csv(folder / f"{name}.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA.format(sites='a = "a.csv"\nb = "b.csv"'))
    schema = read_schema(folder / "schema.toml")
    sites = [TableSite(name, i, schema, seed, share) for i, name in enumerate("ab")]
    train = {p for s in sites for p in s.train.texts("patient")}
    test = {p for s in sites for p in s.test.texts("patient")}
    assert not train & test
    assert sum(map(len, sites)) == 160


def test_without_an_id_rows_are_split_by_themselves(hospitals):
    schema = SCHEMA.replace('id = "patient"\n', "")
    scenario = from_tables(hospitals(schema, a=rows(0, 50)), test_share=0.3)
    assert [len(scenario.clients[0].train), len(scenario.clients[0].test)] == [35, 15]


# --- reading ------------------------------------------------------------------------------------------------------


def test_csv_and_parquet_in_any_order_of_columns_are_the_same(hospitals, tmp_path):
    path = three(hospitals)
    first = from_tables(path)
    frame = pd.read_csv(tmp_path / "b.csv")
    (tmp_path / "b").mkdir()
    frame[:50][sorted(frame.columns)].to_parquet(tmp_path / "b" / "1.parquet")
    frame[50:].to_csv(tmp_path / "b" / "2.csv", index=False, sep=";")
    path.write_text(path.read_text().replace("b.csv", "b"))
    second = from_tables(path)
    for one, other in zip(first.clients, second.clients, strict=True):
        assert torch.equal(one.train.tensors()[0], other.train.tensors()[0])
        assert torch.equal(one.test.tensors()[1], other.test.tensors()[1])


def test_whole_numbers_are_the_same_category_however_they_are_stored():
    for column in ([1, 2, None], ["1", "2", "?"], [1.0, 2.0, np.nan], pd.array([1, 2, None], dtype="Int64")):
        assert Table(pd.DataFrame({"c": column}), MISSING, "t").texts("c") == ["1", "2", None]


BAD = {
    "text in a number": (lambda f: f.assign(age="old"), "row 1: age = 'old' is not a finite number"),
    "infinite": (lambda f: f.assign(age=np.inf), "age = 'inf' is not a finite number"),
    "another class": (lambda f: f.assign(ill="maybe"), "ill is 'maybe'; the classes are no, yes"),
    "no target": (lambda f: f.drop(columns="ill"), "has no column 'ill'; it has patient"),
    "no id": (lambda f: f.assign(patient=""), "row 1: patient is missing"),
    "no rows": (lambda f: f[:0], "has no rows"),
    "one patient": (lambda f: f.assign(patient="p"), "b: no (training|test) rows of 60"),
    "too large": (lambda f: f.assign(age=[1e308] * 60), "age has a value that is too large"),
}


@pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD)
def test_a_bad_table_is_named(hospitals, change, said):
    with pytest.raises(DataError, match=said):
        from_tables(hospitals(a=rows(0), b=change(rows(1))))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not in UTF-8"),
        (b"a,a\n1,2\n", "two columns are called 'a'"),
        (b"a,\n1,2\n", "column 2 has no name"),
        (b"a,b\n1,2,3\n", "not a readable CSV"),
        (b'a,b\n1,"2', "not a readable CSV"),
    ],
)
def test_a_damaged_csv_file_is_named(tmp_path, text, said):
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(DataError, match=said):
        read_table(tmp_path / "t.csv", MISSING)


def test_a_damaged_or_bloated_parquet_file_is_named(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(tmp_path / "t.parquet", MISSING)
    pd.DataFrame({"a": np.zeros(20_000_000, dtype=np.int64)}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="would expand to 160,000,000"):
        read_table(tmp_path / "t.parquet", MISSING)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('target = "ill"', 'target = "age"', "'age' is both a feature and the target"),
        ('age = "number"', 'age = "years"', "feature 'age': expected"),
        ('["no", "yes"]', '["no", "no"]', "classes has 'no' twice"),
        ('["no", "yes"]', '["no", "NA"]', "'NA', which is listed in `missing`"),
        ("classes", "clases", "Did you mean 'classes'"),
        ("target =", "target", "not a readable TOML"),
    ],
)
def test_a_bad_schema_is_explained(hospitals, old, new, said):
    with pytest.raises(ConfigError, match=said):
        read_schema(hospitals(SCHEMA.replace(old, new), a=rows(0)))


# --- drafting and running -----------------------------------------------------------------------------------------


def test_a_draft_reads_back_as_the_schema_it_should_be(hospitals, tmp_path):
    three(hospitals, c=rows(2).drop(columns="dose").assign(remark=[f"text {i}" for i in range(60)]))
    text = draft([tmp_path / f"{name}.csv" for name in "abc"], tmp_path, target="ill")
    (tmp_path / "drafted.toml").write_text(text)
    schema = read_schema(tmp_path / "drafted.toml")
    assert (schema.target, schema.classes, schema.id) == ("ill", ("no", "yes"), "patient")
    assert schema.features == {"age": "number", "dose": "number", "ward": ("A", "B", "C")}
    assert "Left out: 'remark', text with 60" in text
    assert "'dose' is missing at c" in text
    assert len(from_tables(tmp_path / "drafted.toml").clients) == 3


def test_the_command_line_describes_and_runs(fedpac, hospitals, tmp_path):
    three(hospitals)
    files = [tmp_path / f"{name}.csv" for name in "abc"]
    assert "name the column to predict with --target" in fedpac("data", "describe", *files)[2]
    assert "Did you mean 'ill'" in fedpac("data", "describe", *files, "--target", "il")[2]
    assert fedpac("data", "describe", *files, "--target", "ill", "--out", "s.toml")[0] == 0
    assert "already exists" in fedpac("data", "describe", *files, "--target", "ill", "--out", "s.toml")[2]
    code, text, complaint = fedpac("run", "--tables", "s.toml", "--rounds", 2, "--no-figures", "--out", "r")
    assert (code, complaint) == (0, "")
    assert "ward: only b knows category 'C'" in text
    assert 'model = "mlp"' in Path("r/config.toml").read_text()
    assert Preprocessing.from_json(Path("r/preprocessing.json").read_bytes(), "x").width == 5
    assert "scenario 'natural'" in fedpac("run", "--set", "data.path=s.toml", "--out", "q")[2]


@pytest.mark.parametrize("method", ["fedpac", "local"])
def test_a_run_on_tables_is_reproducible_and_goes_on_after_an_interruption(hospitals, tmp_path, method):
    def config(rounds: int):
        return make_config({
            "method": method, "model": "mlp", "data": {"scenario": "natural", "path": str(three(hospitals))},
            "training": {"epochs": 1}, "run": {"rounds": rounds, "evaluate_every": 1, "checkpoint_every": 2},
        })  # fmt: skip

    def stop(report):
        if report.round == 3:
            raise KeyboardInterrupt

    run(config(5), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config(5), tmp_path / "broken", callbacks=[stop])
    resume(tmp_path / "broken")
    assert exact(tmp_path / "whole") == exact(tmp_path / "broken")
    prepared = [(tmp_path / name / "preprocessing.json").read_bytes() for name in ("whole", "broken")]
    assert prepared[0] == prepared[1]


def test_changed_tables_are_refused_on_resume_and_nothing_is_overwritten(hospitals, tmp_path):
    path = three(hospitals)
    values = {"method": "local", "model": "mlp", "data": {"scenario": "natural", "path": str(path)}}
    values["run"] = {"rounds": 2, "engine": "serial"}
    run(make_config(values), tmp_path / "r")
    before = (tmp_path / "r" / "preprocessing.json").read_bytes()
    (tmp_path / "r" / "summary.json").unlink()
    three(hospitals, a=rows(7))
    with pytest.raises(FedpacError, match="started with other data"):
        resume(tmp_path / "r")
    assert (tmp_path / "r" / "preprocessing.json").read_bytes() == before
