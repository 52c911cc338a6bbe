"""Runs in which some clients have no result: not asked, not drawn, or failed. They end, and are read and compared."""

import csv
import json
from collections import defaultdict

import numpy as np
import pytest

from fedpac.runs.execute import resume
from fedpac.runs.read import read_run

COMMAND = [
    "run", "--method", "fedpac", "--dataset", "digits", "--clients", 6, "--rounds", 4, "--engine", "serial",
    "--set", "model=logistic", "--set", "data.samples=10", "--set", "training.epochs=1",
    "--set", "run.evaluate_every=2",
]  # fmt: skip
FAILING = """
from fedpac import FedpacError
from fedpac.methods.fedpac import FedPAC

class Failing(FedPAC):
    name, title = "failing", "Failing"

    def local(self, client, down):
        if client.id in (1, 4):
            raise FedpacError(f"client {client.id}: no power")
        return super().local(client, down)
"""


def settings(**values):
    return [part for key, value in values.items() for part in ("--set", f"run.{key}={value}")]


def by_hand(folder):
    """(split, round) -> client -> accuracy, straight from the file."""
    found = defaultdict(dict)
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            found[row["split"], int(row["round"])][int(row["client"])] = float(row["accuracy"])
    return found


@pytest.mark.parametrize(
    ("ways", "personal", "received"),
    [
        ({"personal_every": 0}, None, 6),
        ({"personal_every": 4}, 6, 6),
        ({"evaluate_clients": 2}, 2, 2),
        ({"evaluate_absentees": "false", "everybody_last": "false", "participation": 0.5}, 3, 6),
        ({"min_replies": 3}, 4, 6),
    ],
    ids=lambda ways: "-".join(ways) if isinstance(ways, dict) else None,
)
def test_such_a_run_ends_and_its_means_are_over_those_that_have_a_result(fedpac, tmp_path, ways, personal, received):
    (tmp_path / "flaky.py").write_text(FAILING)
    method = ["--method", "flaky:Failing"] if "min_replies" in ways else []
    code, out, err = fedpac(*COMMAND, *method, *settings(**ways), "--out", "run")
    assert (code, err) == (0, "")
    summary, found = json.loads((tmp_path / "run" / "summary.json").read_text()), by_hand(tmp_path / "run")
    for which, scored in (("received", received), ("personal", personal)):
        if scored is None:
            assert summary[which] is None
            assert (which, 4) not in found
            continue
        last = list(found[which, 4].values())
        assert len(last) == scored
        assert summary[which]["final"]["mean"] == pytest.approx(np.mean(last))
        assert summary[which]["final"]["round"] == 4
        assert summary[which]["final"].get("clients", 6) == scored
    code, out, err = fedpac("compare", "run", "--out", "beside", "--csv")
    assert (code, err) == (0, "")
    for which, scored in (("received", received), ("personal", personal)):
        if scored is not None:
            assert f"{100 * np.mean(list(found[which, 4].values())):.2f} ±" in out
            assert (f"{scored} of 6 ({which})" in out) == (scored < 6)


def test_clients_without_a_result_are_no_zeros(fedpac, tmp_path):
    fedpac(*COMMAND, *settings(evaluate_clients=2), "--out", "run")
    run, found = read_run(tmp_path / "run"), by_hand(tmp_path / "run")
    assert set(run.accuracy["received"]) == {2, 4}
    for t in (2, 4):
        there = found["received", t]
        assert [i for i in range(6) if not np.isnan(run.accuracy["received"][t][i])] == sorted(there)
        assert run.means["received"][t] == np.mean([there[i] for i in sorted(there)])
    assert found["received", 2].keys() != found["received", 4].keys(), "the sample is drawn anew"


def test_a_run_with_failing_clients_goes_on_after_a_kill(fedpac, tmp_path):
    """Rows that are missing because a client failed are not taken for rows that were lost."""
    (tmp_path / "flaky.py").write_text(FAILING)
    ways = ["--method", "flaky:Failing", *settings(min_replies=3, checkpoint_every=2)]
    fedpac(*COMMAND, *ways, "--out", "run")
    whole = {name: (tmp_path / "run" / name).read_bytes() for name in ("metrics.csv", "failures.csv")}
    (tmp_path / "run" / "summary.json").unlink()
    resume(tmp_path / "run", trust=True)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in whole} == whole


def test_an_accuracy_that_is_none_is_refused(fedpac, tmp_path):
    fedpac(*COMMAND, "--out", "run")
    metrics = tmp_path / "run" / "metrics.csv"
    lines = metrics.read_text().splitlines()
    for wrong in ("nan", "1.5", "-0.1", "inf"):
        cells = lines[1].split(",")
        cells[3] = wrong
        metrics.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
        code, _, err = fedpac("compare", "run")
        assert code == 1
        assert "is not an accuracy" in err
