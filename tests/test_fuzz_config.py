"""Configs and tables of experiments, damaged or absurd: one that can be used and written again, or a ConfigError."""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from fedpac.config import Config, make_config
from fedpac.config_values import override, read_config
from fedpac.methods import list_methods
from fedpac.tables.spec import read_experiment, shipped
from fuzzing import budget, damaged, fuzz


def written_again(config: Config, folder: Path) -> None:
    """What is accepted can be written, and is the same config when it is read."""
    (folder / "again.toml").write_text(config.to_toml())
    assert make_config(read_config(folder / "again.toml")) == config


@cache
def configs() -> list[bytes]:
    """One for each method, and those of the paper's settings."""
    plain = [make_config({"method": name, "data": {"dataset": "digits"}}) for name in list_methods()]
    cells = [e.config(next(iter(e.settings)), e.run_of(next(iter(e.methods))), 0) for e in shipped().values()]
    return [config.to_toml().encode() for config in plain + cells]


def read_damaged_config(rng: np.random.Generator) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.toml").write_bytes(damaged(configs()[rng.integers(len(configs()))], rng))
        written_again(make_config(read_config(folder / "config.toml")), folder)


@cache
def tables() -> list[bytes]:
    folder = Path(__file__).parent.parent / "src" / "fedpac" / "experiments"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def read_damaged_table(rng: np.random.Generator) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "table.toml"
        path.write_bytes(damaged(tables()[rng.integers(len(tables()))], rng))
        experiment = read_experiment(path)
        for setting in experiment.settings:
            for row in experiment.methods:
                experiment.config(setting, experiment.run_of(row), 0)


KEYS = [
    "method", "method.name", "method.lam", "method.ridge", "method.x.y", "model", "data", "data.dataset",
    "data.clients", "data.scenario", "data.dominant", "data.path", "data.angles", "data.sizes", "data.s", "training.lr",
    "training.batch", "run.rounds", "run.seed", "run.device", "run.engine", "run.workers", "run", "run.", ".run",
    "run.seed.x", "", ".", "..", "a" * 5_000, ".".join("a" * 3_000), "é", "\ud800", "run.__class__", "__class__.x",
    "model_config",
]  # fmt: skip
VALUES = [
    "1", "-1", "0", "0.5", "nan", "inf", "-inf", "true", "1e400", "9" * 400, "9" * 5_000, "0x" + "f" * 5_000, "1_000",
    "[" * 3_000, "[" * 150 + "]" * 150, "[" * 900 + "]" * 900, "{a=" * 300, "[]", "[[]]", "[[0, 1], [2]]", "[1, 'a']",
    "{}", "{name='fedavg'}", "''", "'\\u0000'", "\x00", "\ud800", "é" * 5_000, "a b", "1979-05-27", "07:32:00", "'\"",
    '"""', "1\n[run]\nseed=3", "fedavg", "fedpac", "digits", "cifar10", "own", "natural", "dirichlet", "cpu", "cuda",
    "serial", "nowhere.at.all:X", ":", "a:", ":b", "..", "/dev/zero", "~", "=", "x" * 100_000, "." * 40_000,
]  # fmt: skip


def make_absurd(rng: np.random.Generator) -> None:
    values: dict[str, object] = {}
    for _ in range(rng.integers(1, 3)):
        values = override(values, f"{KEYS[rng.integers(len(KEYS))]}={VALUES[rng.integers(len(VALUES))]}")
    with tempfile.TemporaryDirectory() as name:
        written_again(make_config(values), Path(name))


@budget(short=1_000, long=50_000)
def test_damaged_configs(cases):
    tally = fuzz(read_damaged_config, cases)
    assert tally.refused > cases / 2
    assert tally.accepted > cases / 50  # another digit is another config


@budget(short=300, long=10_000)
def test_damaged_tables(cases):
    tally = fuzz(read_damaged_table, cases)
    assert tally.refused > cases / 2
    assert tally.accepted > cases / 50


@budget(short=1_000, long=50_000)
def test_absurd_settings(cases):
    tally = fuzz(make_absurd, cases)
    assert tally.refused > cases / 2
    assert tally.accepted > cases / 100
