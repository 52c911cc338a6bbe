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


def table_line(name, found, defences):
    """A line of the page's tables of reconstructed images, as it must read."""
    images = [f"{float(r['psnr']):.1f} dB, {float(r['ssim']):.2f}, {float(r['found_percent']):.0f} %" for r in found]
    assert [r["defence"] for r in found] == defences
    return "| " + " | ".join([f"{name} image" + "s" * (name != "1"), *images]) + " |"


@pytest.mark.parametrize("count", ["1", "8", "50"])
def test_gradients_tell_what_the_file_says(count):
    found = [r for r in rows("attack_gradients.csv") if r["images_in_step"] == count]
    assert table_line(count, found, ["nothing", "epsilon 1000", "epsilon 100", "encrypted"]) in PAGE


@pytest.mark.parametrize("count", ["1", "3", "20"])
def test_class_means_tell_what_the_file_says(count):
    found = [r for r in rows("attack_means.csv") if (r["round"], r["images_in_mean"]) == ("11", count)]
    defences = ["nothing", "epsilon 1000", "epsilon 100", "encrypted", "encrypted and secret start", "guess"]
    assert table_line(count, found, defences) in PAGE


@pytest.mark.parametrize("row", rows("attack_membership.csv"), ids=str)
def test_models_tell_members_as_the_file_says(row):
    areas = f"{float(row['loss_auc']):.2f} | {float(row['shadow_auc']):.2f} | {row['tpr_at_1_fpr_percent']} %"
    who = f"{ {'fedpac': 'FedPAC', 'local': 'Local-only'}[row['method']] } | {row['model']} | {row['defence']}"
    assert f"| {who} | {areas} | {row['train_percent']} | {row['held_out_percent']} |" in PAGE


def test_every_attack_works_where_nothing_is_protected():
    """Else it would be a straw man, and what a defence leaves of it would say nothing."""
    for name, of, guess in (
        ("attack_gradients.csv", "images_in_step", "encrypted"),
        ("attack_means.csv", "images_in_mean", "guess"),
    ):
        last = {(r[of], r["defence"]): r for r in rows(name) if r.get("round") != "1"}
        for count in {count for count, _ in last}:
            plain, left = last[count, "nothing"], last[count, guess]
            assert float(plain["psnr"]) > float(left["psnr"])
            assert float(plain["ssim"]) > float(left["ssim"])
            if count != "50":  # which tells averages of classes, and no single image
                assert float(plain["found_percent"]) > 10 * float(left["found_percent"]) - 1
    for r in rows("attack_membership.csv"):
        assert float(r["shadow_auc"]) > 0.65 or r["defence"] != "nothing"


def test_encryption_hides_class_means_only_with_a_secret_start():
    found = {
        (r["round"], r["images_in_mean"], r["defence"]): float(r["found_percent"]) for r in rows("attack_means.csv")
    }
    for round, count, defence in found:
        if defence == "encrypted and secret start":
            assert found[round, count, defence] <= 2
            assert found[round, count, "encrypted"] > 20


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
