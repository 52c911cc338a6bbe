"""What docs/beyond.md says follows from the runs: its tables, and the numbers in its sentences."""

import csv
import statistics
from pathlib import Path

import numpy as np
import pytest
from studies import beyond_page

from fedpac.methods.base import Which

ROOT = Path(__file__).parent.parent


def test_the_page_beyond_the_paper_is_what_the_runs_give() -> None:
    """`python -m studies.beyond_page` writes it again."""
    page = (ROOT / "docs" / "beyond.md").read_text()
    assert beyond_page.filled(page) == page


def text_of(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def final(setting: str, row: str, which: Which = "received") -> float:
    return statistics.mean(beyond_page.means(setting, row, 200, which))


def test_readme_says_how_far_fedpac_plus_is_ahead() -> None:
    ours, theirs = (final("cifar10-20", row) for row in ("fedpac-plus", "fedpac"))
    readme = text_of("README.md")
    said = f"ends {ours - theirs:.2f} points higher ({ours:.2f} and {theirs:.2f} % received, three seeds)"
    assert f"200 rounds in {beyond_page.reached('cifar10-20')} and {said}" in readme
    ours, theirs = (final("cifar10-20-n100", row) for row in ("fedpac-plus", "fedpac"))
    assert f"with 100 images a client {ours - theirs:.2f} points higher ({ours:.2f} and {theirs:.2f})" in readme
    ours, theirs = (final("fashion-mnist-20", row) for row in ("fedpac-plus", "fedpac"))
    ends = f"ends at {ours:.2f}, FedPAC at {theirs:.2f}"
    assert f"in round {beyond_page.reached('fashion-mnist-20')} and {ends}" in readme
    ours, theirs = (final("cifar10-100", row) for row in ("fedpac-plus", "fedpac"))
    assert f"it ends at {ours:.2f} on CIFAR-10 and FedPAC at {theirs:.2f} (one seed" in readme


@pytest.mark.parametrize("setting", ["cifar10-20-n100", "fashion-mnist-20-n100"])
def test_with_little_data_it_is_ahead_on_every_seed_in_every_round(setting: str) -> None:
    for t in range(5, 201, 5):
        both = (beyond_page.means(setting, row, t) for row in ("fedpac-plus", "fedpac"))
        assert all(ours > theirs for ours, theirs in zip(*both, strict=True))


def test_the_page_says_where_the_steady_version_is_better() -> None:
    steady, now = (final("cifar10-100", row) for row in ("fedpac-plus-steady", "fedpac-plus"))
    assert f"Here the steady version ends higher on CIFAR-10 ({steady:.2f})." in text_of("docs/beyond.md")
    assert steady > now


def test_the_page_says_what_is_not_ours() -> None:
    assert f"FedPAC with that alone ends at {final('cifar10-20', 'fedpac-augmented'):.2f}." in text_of("docs/beyond.md")


def test_the_page_says_how_control_variates_grow_where_steps_are_few() -> None:
    page, found = text_of("docs/beyond.md"), beyond_page.records("control-echo")
    own = {(row["strength"], int(row["round"])): float(row["mean length of h_i"]) for row in found}
    shared = [float(row["length of h"]) for row in found if row["strength"] == "1" and 13 <= int(row["round"]) <= 25]
    assert f"of {own['1', 13]:.2f} in round 13 to {own['1', 25]:.2f} in round 25" in page
    assert f"while h stays at {min(shared):.2f} to {max(shared):.2f};" in page
    assert f"more slowly ({own['0.5', 13]:.2f}, {own['0.5', 25]:.2f}, and {own['0.5', 60]:.2f} in round 60)" in page
    assert f"diverge there, with seed 10 in round {1 + max(t for strength, t in own if strength == '1')} (" in page


def test_the_page_says_what_late_rounds_gain() -> None:
    page, found = text_of("docs/beyond.md"), beyond_page.records("late-rounds")
    rows = {(row["setting"], row["trial"]): row for row in found}

    def gain(trial: str, other: str, t: int, setting: str = "few") -> float:
        return float(rows[setting, trial][f"round {t}"]) - float(rows[setting, other][f"round {t}"])

    grown, late = "growing alignment", "growing alignment, rate falls from round 50 on"
    at_once = "alignment grows half as fast, rate falls from the start"
    assert f"most of the gain ({gain(grown, 'steady', 200):.1f} points, with the falling rate" in page
    assert f"the falling rate {gain(late, 'steady', 200):.1f})" in page
    ends = [float(rows["few", trial]["round 200"]) for trial in (at_once, late)]
    assert f"ends highest ({ends[0]:.2f}; from round 50 on: {ends[1]:.2f})" in page
    assert f"cost {-gain('steady, three head epochs', 'steady', 180):.1f} points by round 180" in page
    for trial, other, t, points in (  # what the page says in words
        ("steady, lambda 5", "steady", 20, -3), ("steady, lambda 5", "steady", 200, 3),
        ("FedPAC, lambda 5", "FedPAC", 200, 0), (at_once, grown, 100, -2), (late, grown, 100, 0),
        ("steady, moving average of bodies", "steady", 200, 0.5),
    ):  # fmt: skip
        assert gain(trial, other, t) == pytest.approx(points, abs=0.5)
    steady = rows["many", "steady"]
    assert float(steady["round 50"]) - float(steady["round 200"]) == pytest.approx(0.5, abs=0.1)


def test_the_page_says_that_the_lead_shrinks() -> None:
    rise = [
        beyond_page.common("cifar10-20-n100", "fedpac-plus", 200)[i]
        - beyond_page.common("cifar10-20-n100", "fedpac-plus", 150)[i]
        for i in (1, 0)
    ]
    assert f"on CIFAR-10, {rise[0]:.2f} and {rise[1]:.2f} points from round 150 on" in text_of("docs/beyond.md")


def test_where_fedpac_is_not_the_best_choice_is_measured() -> None:
    def final(setting: str, row: str, which: Which = "received", last: int = 200) -> str:
        return f"{100 * beyond_page.runs(setting, row)[0].accuracy[which][last].mean() + 1e-9:.2f}"

    text = " ".join((ROOT / "docs" / "beyond.md").read_text().split())
    few, skewed = "fashion-mnist-20-n100", "fashion-mnist-20-feature-skew"
    assert f"({final(few, 'fedccfa')}, FedAvg {final(few, 'fedavg')})" in text
    assert f"after local training it has {final(few, 'fedccfa', 'personal')}" in text
    assert f"({final(few, 'feddbe')} and {final(few, 'fedpac')} on Fashion-MNIST" in text
    assert f"({final(skewed, 'fedpac')} and {final(skewed, 'fedavg', 'personal')} on" in text
    many = "fashion-mnist-20-dir01"
    assert f"({final(many, 'fedavg', 'personal', 100)} and {final(many, 'fedpac', last=100)})" in text
    assert f"Ditto ({final(many, 'ditto', 'personal', 100)}) and FedALA ({final(many, 'fedala', last=100)})" in text
    scarce = "cifar10-20-n100"
    assert f"until round 60 ({final(scarce, 'pfedfda', last=60)} and {final(scarce, 'fedpac', last=60)})" in text
    behind = beyond_page.signed(beyond_page.gap("cifar10-20", "pfedfda", 200, "fedpac", 200)).removeprefix("-")
    tuned = final("cifar10-20", "pfedfda", "personal")
    assert f"it is {behind} points behind FedPAC as received, and after local training it has {tuned}." in text
    private = {(row["method"], row["budget"]): row["percent"] for row in beyond_page.records("epsilon")}
    assert f"FedAvg-FT has {private['fedavg-ft', '3']} and FedPAC {private['fedpac', '3']}" in text
    assert f"({private['fedavg-ft', '10']} and {private['fedpac', '10']})" in text
    assert f"noise: {private['fedpac combined', '100']} at ε = 100" in text
    assert all(float(private["fedpac", budget]) > float(private["fedavg-ft", budget]) for budget in ("10", "30", "100"))
    assert (
        f"({final('fashion-mnist-20', 'scaffold')} on Fashion-MNIST, FedAvg {final('fashion-mnist-20', 'fedavg')})"
        in text
    )


def test_one_small_client_levels_the_means_under_dirichlet() -> None:
    text = " ".join((ROOT / "docs" / "beyond.md").read_text().split())
    setting, last, small = "fashion-mnist-20-dir01", 100, 4
    plus, plain = (beyond_page.runs(setting, row)[0].accuracy["received"] for row in ("fedpac-plus", "fedpac"))
    tuned = beyond_page.runs(setting, "fedavg")[0].accuracy["personal"]
    theirs, ours, pacs = (100 * scores[last][small] for scores in (tuned, plus, plain))
    assert f"13 images, on which FedAvg-FT has {theirs:.2f} and FedPAC+ {ours:.2f};" in text
    assert f"FedAvg-FT has {theirs:.2f} and FedPAC {pacs:.2f}" in text
    other = beyond_page.runs(setting, "fedpac")[0].accuracy["received"][last], tuned[last]
    for client, words in ((19, "ahead ({:.2f} and {:.2f})"), (8, "behind ({:.2f} and {:.2f})")):
        assert words.format(*(100 * scores[client] for scores in other)) in text
    with (ROOT / "results" / setting / "fedpac-seed0" / "clients.csv").open() as file:
        sizes = [int(row["train"]) for row in csv.DictReader(file)]
    assert sizes.index(min(sizes)) == small
    assert f"between {min(sizes)} and {max(sizes):,} training images" in text
    gaps = np.delete(100 * (plus[last] - tuned[last]), small)
    error = gaps.std(ddof=1) / np.sqrt(len(gaps))
    assert f"ahead on {(gaps > 0).sum()} of the other 19, by {gaps.mean():.2f} ± {error:.2f} points" in text
    assert sum(plus[t].mean() > tuned[t].mean() for t in range(10, 101, 10)) == 7
    first, ahead = 100 * (plus[10] - plain[10]).mean(), beyond_page.gap(setting, "fedpac-plus", last, "fedpac", last)
    assert f"by {first:.2f} points in round 10 and {beyond_page.signed(ahead).removeprefix('+')} in round 100." in text
    assert all(plus[t].mean() > plain[t].mean() for t in range(10, 101, 10))
