"""The report: what it says, that it holds everything it needs, and that text from a folder stays text."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.utils import check_random_state

from fedpac.errors import RunError
from fedpac.methods import list_methods
from fedpac.report.web import words
from fedpac.report.web.contents import clean, contents, evenly
from fedpac.report.web.gains import gains, newcombe, wilson
from fedpac.report.web.page import page_html, report_html, write_report
from fedpac.report.web.settings import settings_of
from fedpac.runs.read import read_run, read_runs
from forged_runs import forge
from hostile_text import HOSTILE


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Local-only with one seed, FedPAC with two, FedAvg with none of Local-only's."""
    root = tmp_path_factory.mktemp("compared")
    forge(root / "local", "local", level=0.8)
    for seed in (0, 1):
        forge(root / f"fedpac{seed}", "fedpac", level=0.9, seed=seed, weights=True)
    forge(root / "fedavg", "fedavg", level=0.7, seed=7)
    return read_runs([root])


# --- who gains ----------------------------------------------------------------------------------------------------


def test_wilson_by_hand():
    """81 of 263, an example of Newcombe's: 0.2553 to 0.3662."""
    low, high = wilson(np.array([81 / 263]), np.array([263.0]))
    assert (round(low[0], 4), round(high[0], 4)) == (0.2553, 0.3662)


def test_newcombe_by_hand():
    """56 of 70 against 48 of 80: 0.0524 to 0.3339 (his method 10)."""
    low, high = newcombe(*(np.array([x]) for x in (56 / 70, 70.0, 48 / 80, 80.0)))
    assert (round(low[0], 4), round(high[0], 4)) == (0.0524, 0.3339)


def test_the_interval_holds_the_truth_as_often_as_it_says(tmp_path):
    """Models that are right independently of each other: the case the interval is made for."""
    rng, n, p, q = check_random_state(0), 400, 0.9, 0.8
    ours, theirs = (rng.binomial(n, share, 4000) / n for share in (p, q))
    forge(tmp_path / "a", "fedpac", clients=4000, rounds=1, test=n)
    forge(tmp_path / "b", "local", clients=4000, rounds=1, test=n)
    a, b = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    a.accuracy["received"][1], b.accuracy["personal"][1] = ours, theirs
    found = gains([a], [b], "received")
    covered = ((found.low <= p - q) & (p - q <= found.high)).mean()
    assert 0.93 < covered < 0.97
    assert found.count("gains") + found.count("loses") + found.count("open") == 4000
    assert found.count("gains") > 3900


def test_only_seeds_that_both_have_are_compared(compared):
    (setting,) = settings_of(compared)
    by_name = {e.name: e for e in setting.experiments}
    assert setting.gains(by_name["FedPAC"]).seeds == [0]
    assert setting.gains(by_name["FedAvg"]) is None
    assert setting.gains(by_name["Local-only"]) is None


def test_runs_on_other_data_are_another_setting(tmp_path):
    forge(tmp_path / "a", "fedpac")
    forge(tmp_path / "b", "local", clients=10)
    forge(tmp_path / "c", "local", more="")
    config = tmp_path / "c" / "config.toml"
    config.write_text(config.read_text().replace("clients = 20", "clients = 20\ns = 50.0"))
    settings = settings_of(read_runs([tmp_path]))
    assert [len(s.experiments) for s in settings] == [1, 1, 1]
    assert [s.title for s in settings] == ["digits groups, 20 clients; s 20.0", "digits groups, 10 clients",
                                           "digits groups, 20 clients; s 50.0"]  # fmt: skip
    assert all(s.gains(s.experiments[0]) is None for s in settings)


# --- what it says -------------------------------------------------------------------------------------------------


def test_the_paragraph_says_what_the_numbers_say(compared):
    (setting,) = settings_of(compared)
    said = " ".join(words.summary(setting))
    fedpac = next(e for e in setting.experiments if e.name == "FedPAC")
    mean = np.mean([run.accuracy["received"][10].mean() for run in fedpac.runs])
    assert f"With FedPAC, the best of 3 here, a model gets {100 * mean:.1f} %" in said
    found = setting.gains(fedpac)
    assert f"{found.count('gains')} of 20 sites gain from taking part" in said
    assert f"{100 * found.difference.max():+.1f} points for client {found.difference.argmax()}" in said
    assert "a simulation" in said
    assert "over 2 seeds" in said


def test_the_paragraph_owns_up(tmp_path):
    forge(tmp_path / "a", rounds=3, wanted=9, note="stand-in: 7 images")
    (setting,) = settings_of(read_runs([tmp_path]))
    said = " ".join(words.summary(setting))
    assert "not the published ones (stand-in: 7 images)" in said
    assert "Not finished: FedPAC." in said
    assert "cannot say who is better off than alone" in said
    assert "(one seed)" in said


def test_numbers_as_people_read_them():
    assert [words.size(n) for n in (12, 4_500, 7.25e6, 1.94e9)] == ["12 bytes", "4.5 kB", "7.25 MB", "1.94 GB"]
    assert [words.duration(n) for n in (7.2, 119, 600, 7260)] == ["7 s", "119 s", "10 min", "2 h 01 min"]


def test_contents_are_those_of_the_runs(compared):
    (setting,) = contents(compared)["settings"]
    by_name = {e["name"]: e for e in setting["experiments"]}
    run = next(r for r in compared if r.method == "local")
    assert by_name["Local-only"]["final"]["personal"]["sites"] == np.round(run.accuracy["personal"][10], 4).tolist()
    curve = by_name["Local-only"]["curves"]["received"]
    assert curve["mean"] == np.round([100 * run.means["received"][t] for t in range(1, 11)], 2).tolist()
    assert [w["seed"] for w in by_name["FedPAC"]["weights"]] == [0, 1]
    assert by_name["FedPAC"]["final"]["received"]["over"] == "seeds"
    assert setting["alone"] == [e["name"] for e in setting["experiments"]].index("Local-only")
    assert len({(e["colour"], e["marker"]) for e in setting["experiments"]}) == 3


def test_rounds_are_left_out_evenly():
    assert evenly(range(1, 201), 5) == [1, 51, 101, 150, 200]
    assert evenly([3, 4], 5) == [3, 4]


def test_json_has_no_numbers_that_json_has_not():
    assert clean({"a": [np.float64("nan"), 1.0, float("inf")], "b": (1.5,)}) == {"a": [None, 1, None], "b": [1.5]}


def test_scores_beside_accuracy(tmp_path):
    folder = forge(tmp_path / "a", scores=["auroc", "ece", "confusion 1 2"])
    (setting,) = contents([read_run(folder)])["settings"]
    scores = setting["experiments"][0]["scores"]
    assert set(scores) == {"auroc", "ece"}
    rows = csv.DictReader((folder / "scores.csv").read_text().splitlines())
    of_ece = [float(row["value"]) for row in rows if (row["split"], row["metric"]) == ("received", "ece")]
    assert scores["ece"]["received"] == of_ece


def test_the_first_paragraph_is_about_a_finished_method(tmp_path):
    """What is ahead after a few rounds may be behind at the end."""
    runs = [
        read_run(forge(tmp_path / "a", "fedpac", level=0.95, rounds=5, wanted=10)),
        read_run(forge(tmp_path / "b", "fedavg", level=0.6)),
    ]
    (setting,) = contents(runs)["settings"]
    assert setting["experiments"][setting["headline"]]["name"] == "FedAvg"
    assert "Not finished: FedPAC." in setting["words"]
    (setting,) = contents(runs[:1])["settings"]
    assert setting["experiments"][setting["headline"]]["name"] == "FedPAC"


def test_reliability_of_all_sites_and_of_each(tmp_path):
    runs = [read_run(forge(tmp_path / f"{seed}", seed=seed, reliability=True)) for seed in (0, 1)]
    (setting,) = contents(runs)["settings"]
    found = setting["experiments"][0]["reliability"]["received"]
    assert found["sites"]["3"] == [
        [at, 2 * (10 + at), round((at + 0.5) / 15, 4), round((at - 3) / 15, 4)] for at in (7, 11, 14)
    ]
    assert found["all"][0] == [7, 20 * 2 * 17, 0.5, round(5 / 15, 4)]  # two seeds; 0 to 4 fifteenths too confident
    (setting,) = contents([read_run(forge(tmp_path / "many", clients=3_000, rounds=1, reliability=True))])["settings"]
    found = setting["experiments"][0]["reliability"]["received"]
    assert found["sites"] is None
    assert found["all"][0][1] == 3_000 * 17
    (setting,) = contents([read_run(forge(tmp_path / "none"))])["settings"]
    assert setting["experiments"][0]["reliability"] == {"received": None, "personal": None}


@pytest.mark.parametrize("value", ["nan", "-1", "1e300"])
def test_reliability_that_cannot_be_is_named(tmp_path, value):
    folder = forge(tmp_path / "a", reliability=True)
    table = (folder / "scores.csv").read_text()
    (folder / "scores.csv").write_text(table.replace("reliability 7 samples,17", f"reliability 7 samples,{value}", 1))
    with pytest.raises(RunError, match=r"scores.csv is damaged: client 0, round 10: 'test/reliability 7 samples' is"):
        contents([read_run(folder)])


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e308", "9" * 400])
def test_seconds_that_cannot_be_are_named(tmp_path, value):
    folder = forge(tmp_path / "a")
    table = (folder / "rounds.csv").read_text()
    (folder / "rounds.csv").write_text(table.replace("1,20,1.0,2.0", f"1,20,{value},2.0", 1))
    with pytest.raises(RunError, match="is not a number of seconds"):
        read_run(folder)


def test_a_folder_cannot_fill_the_page(tmp_path):
    """Whatever texts are in it; those of more than a few thousand characters are cut."""
    environment = {"note": "n" * 3_000_000, "sessions": [{"command": "c" * 3_000_000, "machine": "m" * 3_000_000}]}
    folder = forge(tmp_path / "a", environment=environment, failures=[(1, 2, "lost", "r" * 100_000)])
    stated = {"guarantee": "g" * 3_000_000, "epsilon": 1.0, "encryption": "e" * 3_000_000}
    (folder / "summary.json").write_text(json.dumps({"privacy": stated}))
    assert write_report(read_runs([folder]), tmp_path / "report.html") < 200_000


def test_epsilon_is_never_shown_without_its_guarantee(tmp_path):
    folder = forge(tmp_path / "a")
    stated = {"epsilon": 3.21, "delta": 0.001, "guarantee": "for each client", "encryption": "CKKS"}
    (folder / "summary.json").write_text(json.dumps({"privacy": stated}))
    run = read_run(folder)
    said = "epsilon = 3.21 for delta = 0.001: for each client; encrypted: CKKS"
    assert words.privacy(run) == said
    (setting,) = contents([run])["settings"]
    assert setting["experiments"][0]["cost"]["privacy"] == said
    assert f"Privacy: {said}." in setting["words"]
    assert words.privacy(read_run(forge(tmp_path / "b"))) == ""


# --- one file -----------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """What a page asks of others, and what is in it that could run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[tuple[str, str | None]] = []
        self.handlers: list[tuple[str, str]] = []
        self.scripts = 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.scripts += tag == "script"
        for name, value in attributes:
            if name in ("src", "href", "action", "data", "poster") and not (value or "").startswith(("#", "data:,")):
                self.fetched.append((tag, value))
            if name.startswith("on") or name == "style":
                self.handlers.append((tag, name))


def test_the_file_asks_nothing_of_others(compared):
    page = report_html(compared)
    found = Links(page)
    assert (found.fetched, found.handlers, found.scripts) == ([], [], 2)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "innerHTML" not in page


def test_text_of_strangers_stays_text(tmp_path):
    environment = {"note": HOSTILE[0], "sessions": [{"command": HOSTILE[1], "commit": HOSTILE[2], "versions": HOSTILE}]}
    for method in ("fedpac", "local"):
        forge(
            tmp_path / method, method, clients=6, names=HOSTILE, environment=environment, weights=True,
            failures=[(1, 2, HOSTILE[0], HOSTILE[1]), (2, -5, "lost", HOSTILE[4])], more=f"# {HOSTILE[0]}\n",
        )  # fmt: skip
    page = report_html(read_runs([tmp_path]))
    found = Links(page)
    assert (found.fetched, found.handlers, found.scripts) == ([], [], 2)
    data = re.search(r'<script type="application/json" id="contents">(.*?)</script>', page, re.DOTALL)[1]
    (setting,) = json.loads(data)["settings"]
    assert [site["name"] for site in setting["sites"]] == HOSTILE
    failures = setting["experiments"][0]["failures"]
    assert [f["site"] for f in failures] == [HOSTILE[2], "client -5"]


def test_odd_folders_give_a_page_or_an_error(tmp_path):
    for number, environment in enumerate(({"sessions": 5}, {"sessions": [3]}, {"sessions": [{"versions": 3}]})):
        folder = forge(tmp_path / f"{number}", environment=environment, rounds=2)
        page_html(contents([read_run(folder)]), "odd")
    (folder / "failures.csv").write_text("round,client,cause,reason\nx,y,z,w\n")
    with pytest.raises(RunError, match=r"failures\.csv is damaged"):
        contents([read_run(folder)])


def test_sites_without_a_result_are_left_out_and_counted(tmp_path):
    """A site that failed in the last round, and an accuracy that was never measured."""
    for method in ("fedpac", "local"):
        folder = forge(tmp_path / method, method, clients=6, rounds=4, failures=[(4, 2, "lost", "gone")])
        rows = [line for line in (folder / "metrics.csv").read_text().splitlines() if not line.startswith("4,2,")]
        kept = [line for line in rows if method == "local" or ",personal," not in line]
        (folder / "metrics.csv").write_text("\n".join(kept) + "\n")
    runs = read_runs([tmp_path])
    (setting,) = settings_of(runs)
    found = setting.gains(setting.experiments[0])
    assert found.verdicts[2] == "unknown"
    assert "of 5 sites gain" in " ".join(words.summary(setting))
    (shown,) = contents(runs)["settings"]
    fedpac = shown["experiments"][0]
    assert fedpac["final"]["personal"] is None
    assert fedpac["gains"]["received"]["difference"][2] is None
    page_html(contents(runs), "some are missing")


def test_22_methods_and_200_rounds_are_under_2_mb(tmp_path):
    """Every round scored, weights in every round of the two methods that have them, all metrics of every method."""
    metrics = ["auroc", "brier", "ece"]
    for method in list_methods():
        weights = method in ("fedpac", "fedfomo")
        forge(tmp_path / "runs" / method, method, rounds=200, weights=weights, scores=metrics, reliability=True)
    runs = read_runs([tmp_path / "runs"])
    assert len(runs) >= 22
    assert write_report(runs, tmp_path / "out" / "report.html") < 2_000_000
    (setting,) = contents(runs)["settings"]
    assert setting["experiments"][0]["curves"]["received"]["of_sites"]["rounds"][-1] == 200


def test_the_command(fedpac, runs, tmp_path):
    code, text, _ = fedpac("report", runs, "--out", "mine/report.html")
    assert code == 0
    assert "Written: mine/report.html" in text
    assert (tmp_path / "mine" / "report.html").read_text().startswith("<!doctype html>")
    code, _, complaint = fedpac("report", tmp_path / "nowhere")
    assert code == 1
    assert "is not a run folder" in complaint
