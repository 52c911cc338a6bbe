"""The page about privacy says what the committed files hold."""

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "privacy.md").read_text()


def rows(name):
    text = (ROOT / "results" / name).read_text()
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def test_encryption_costs_what_the_file_says():
    text = (ROOT / "results" / "encryption.csv").read_text()
    assert "median ratio 1.90" in text
    assert "(1.90 times" in PAGE
    plain, hidden = (
        next(r for r in rows("encryption.csv") if (r["encryption"], r["round"]) == (kind, "20"))
        for kind in ("none", "ckks")
    )
    assert f"| {float(plain['received_percent']):.2f} | {float(hidden['received_percent']):.2f} |" in PAGE
    assert abs(float(plain["received_percent"]) - float(hidden["received_percent"])) <= 0.1
    assert f"| {plain['megabytes_up']} | {hidden['megabytes_up']} |" in PAGE
    errors = [
        float(r[which]) for r in rows("encryption.csv") for which in ("error_of_heads", "error_of_body") if r[which]
    ]
    assert max(errors) <= 6.6e-8


@pytest.mark.parametrize("row", [r for r in rows("attacks.csv") if r["attack"] == "gradient"], ids=str)
def test_gradients_tell_what_the_file_says(row):
    assert f"{float(row['psnr']):.1f}, " in PAGE
    assert f"{float(row['ssim']):.2f}" in PAGE


@pytest.mark.parametrize("row", rows("hostile.csv"), ids=str)
def test_hostile_clients_do_what_the_file_says(row):
    assert row["received_percent"] in PAGE


@pytest.mark.parametrize("row", rows("epsilon.csv"), ids=str)
def test_epsilon_costs_what_the_file_says(row):
    assert row["percent"] in PAGE


@pytest.mark.parametrize(("method", "rule"), [("fedavg", "clipped"), ("fedpac", "krum")])
def test_a_robust_rule_keeps_honest_clients_within_two_points_where_the_mean_does_not(method, rule):
    found = {
        (r["method"], r["attack"], r["hostile_percent"], r["rule"]): r["received_percent"] for r in rows("hostile.csv")
    }
    clean = float(found[method, "sign-flip", "0", "mean"])
    assert clean - float(found[method, "sign-flip", "10", rule]) <= 2
    assert found[method, "sign-flip", "10", "mean"] == "diverged"
