"""The paper's tables as data."""

import re
from pathlib import Path

import pytest

from fedpac.errors import ConfigError
from fedpac.runs.execute import fingerprint
from fedpac.tables.cells import all_cells, fill
from fedpac.tables.results import ResultsFolder
from fedpac.tables.spec import find_experiments, shipped
from small_table import TABLE, cells_of, experiment


def test_every_table_and_figure_of_the_paper_is_there():
    assert set(shipped()) == {
        "all-methods", "table1", "ablation", "concept-shift", "global-models", "fedproto", "imbalanced", "pathological",
        "dirichlet", "scarce", "feature-skew", "heterogeneity", "data-size", "local-epochs", "curves", "weights",
        "choices", "starts", "beyond", "fair",
    }  # fmt: skip
    papers = {name: sum(len(s.paper) for s in e.settings.values()) for name, e in shipped().items()}
    assert papers["table1"] == 15 * 8
    assert papers["global-models"] == 9 * 8
    assert papers["ablation"] == 4 * 4
    assert papers["concept-shift"] == 8 * 2
    assert papers["dirichlet"] == papers["imbalanced"] == papers["pathological"] == 9 * 2
    assert papers["fedproto"] == 5 * 2
    assert (papers["scarce"], papers["feature-skew"]) == (5, 2 * 7)  # two readings of one table
    assert len(shipped()["all-methods"].settings["fashion-mnist,20"].paper) == 25


def test_fedpac_has_the_same_number_wherever_the_paper_repeats_it():
    quoted = [
        (key, setting.paper[row])
        for experiment in shipped().values()
        for key, setting in experiment.settings.items()
        for row in ("fedpac", "local", "fedavg-ft")
        if row in setting.paper and len(key.split(",")) == 2
    ]
    assert len(quoted) > 30
    for key in {key for key, _ in quoted}:
        assert len({value for k, value in quoted if k == key}) <= 3  # one for each of the three rows


def test_equal_folders_are_equal_runs():
    configs: dict[Path, set[str]] = {}
    for table in shipped().values():
        for cell in cells_of(table, Path("results"), seeds=2):
            configs.setdefault(cell.folder, set()).add(fingerprint(cell.config))
    assert len(configs) > 600
    assert [folder for folder, prints in configs.items() if len(prints) > 1] == []


def test_the_papers_settings():
    config = shipped()["table1"].config("cifar10,100", "fedpac", seed=2)
    assert config.data.clients == 100
    assert (config.run.participation, config.run.rounds, config.run.seed) == (0.3, 200, 2)
    assert (config.training.lr, config.training.epochs, config.training.batch) == (0.02, 5, 50)
    assert shipped()["ablation"].config("emnist,20", "fedpac-none", 0).method["alignment"] is False
    assert shipped()["scarce"].config("cifar10,1000,scarce", "ditto", 0).data.samples == 50


def test_rows_that_need_no_run_of_their_own():
    rows = [cell.row for cell in cells_of(shipped()["all-methods"], Path("results"))]
    assert "fedavg-ft" not in rows
    assert "fedem-ft" not in rows
    assert len(rows) == 22  # 22 methods in 25 rows, three of which are by-products


def test_larger_steps_are_twice_those_that_a_method_has_on_the_same_data():
    fair = shipped()["fair"]
    rows = [row for row in fair.methods if row.endswith("-fast")]
    assert len(rows) == 9
    for setting in fair.settings:
        for row in rows:
            plain = fair.config(setting, row.removesuffix("-fast"), 0).training
            assert fair.config(setting, row, 0).training == plain.model_copy(update={"lr": 2 * plain.lr})
    assert fair.config("cifar10,20", "ditto-fast", 0).training.lr == 0.04


def test_only_picks_settings_by_words_and_rows_by_name():
    table = shipped()["table1"]
    assert {c.setting for c in cells_of(table, Path(), only="fashion-mnist,20")} == {"fashion-mnist,20"}
    assert {c.setting for c in cells_of(table, Path(), only="100")} == {k for k in table.settings if k.endswith("100")}
    picked = cells_of(table, Path(), only="cifar10,20,fedpac,fedavg-ft")
    assert [(c.setting, c.row) for c in picked] == [("cifar10,20", "fedpac"), ("cifar10,20", "fedavg")]
    swept = cells_of(shipped()["heterogeneity"], Path(), only="cifar10,20,fedpac")
    assert [c.setting for c in swept] == ["cifar10,20"]
    assert len(cells_of(shipped()["heterogeneity"], Path(), only="cifar10,fedpac")) == 4
    with pytest.raises(ConfigError, match=r"no setting or row 'cifar'\. Did you mean 'cifar10'"):
        cells_of(table, Path(), only="cifar")
    with pytest.raises(ConfigError, match="no setting of table1 has all of 100, 20"):
        cells_of(table, Path(), only="20,100")
    with pytest.raises(ConfigError, match=r"no table or figure 'tabel1'\. Did you mean 'table1'"):
        find_experiments("tabel1")


def test_all_of_them_share_runs():
    everything = all_cells(list(shipped().values()), ResultsFolder(Path("results")))
    assert len({cell.folder for cell in everything}) == len(everything)
    weights = next(c for c in everything if c.setting == "cifar10,20,s80" and c.row == "fedpac")
    assert weights.rounds == 200  # the heat maps need 50 rounds of it, the sweep all
    only_weights = cells_of(shipped()["weights"], Path("results"))
    assert {cell.rounds for cell in only_weights} == {50}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("paper = { fedpac", "paper = { fedpak"), "no row 'fedpak'. Did you mean 'fedpac'"),
        (('by_product_of = "fedavg"', 'by_product_of = "fedprox"'), "no row 'fedprox'"),
        ((', accuracy = "personal"', ""), "a by-product needs `accuracy`"),
        (("fedpac = {}", "mystery = {}"), "methods.mystery needs a title"),
        (('shows = "table"', 'shows = "pie"'), "shows: Input should be"),
        (('shows = "table"', 'shows = "weights"'), "a figure of weights shows one method, but there are fedpac, "),
        (("x = 20", ""), "a sweep needs `x`"),
        (('title = "A small table"', ""), "title is missing"),
        (('title = "A small table"', 'titel = "A"'), "there is no key 'titel'. Did you mean 'title'?"),
        (("fedavg = {}", "fedavg = { titel = 'A' }"), "methods.fedavg: there is no key 'titel'. Did you mean 'title'?"),
        (("training = { epochs = 1 }", "trainig = {}"), "settings.digits,6: there is no key 'trainig'. Did you mean"),
        (("fedavg = {}", "fedavg = 3"), "methods.fedavg = 3: expected a table such as {}"),
        (("paper = { fedpac = 12.34", 'paper = { fedpac = "12.34"'), "settings.digits,6.paper.fedpac: Input should be"),
        (("paper = { fedpac = 12.34", "paper = { fedpac = 1234"), "less than or equal to 100"),
        (("[methods]", "[methods"), "not valid TOML"),
        (('[settings."digits,6"]', '[settings."../../digits,6"]'), "'../../digits,6' names a folder"),
        (("run = { rounds", "run = { seed = 3, rounds"), "has a seed; use --seeds instead"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path, change, complaint):
    text = TABLE.replace(*change, 1)
    if change[0] == "x = 20":
        text = text.replace('shows = "table"', 'shows = "sweep"')
    with pytest.raises(ConfigError, match=re.escape(complaint)) as error:
        experiment(tmp_path, text)
    assert "small.toml" in str(error.value)


def test_a_gathering_file_says_from_where_and_what(tmp_path):
    with pytest.raises(ConfigError, match=r"small\.toml: a table that combines others needs two lists"):
        experiment(tmp_path, 'title = "t"\ngathers = ["other"]\n')


def test_a_wrong_value_names_setting_and_row(tmp_path):
    small = experiment(tmp_path, TABLE.replace("epochs = 1", "epochs = 0"))
    with pytest.raises(ConfigError, match=r"small.toml, setting 'digits,6', row 'fedpac': config: training.epochs = 0"):
        list(fill(cells_of(small, tmp_path / "results")))
