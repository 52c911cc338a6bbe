"""A site with a key that turns on the others: the round goes on without it, in a federation of real processes."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import until
from test_faults import LONG, Trial, config_of

pytestmark = pytest.mark.slow
REASONS = {
    "garbage": "it cannot be read",
    "stranger": "it cannot be read",
    "forged": "it claims to be another's answer",
    "withheld": "did not reply within",
    "giant": "did not reply within",
    "pickled": "client-3",
}


@pytest.mark.parametrize("attack", REASONS)
def test_a_hostile_site_harms_nobody_else(tmp_path, monkeypatch, attack):
    made = tmp_path / "made by a pickle"
    monkeypatch.setenv("PICKLE_WOULD_MAKE", str(made))
    with ExitStack() as stack:
        config = config_of(2, "fedavg", run__min_replies=3, run__deadline=8.0)
        here = Trial(tmp_path / "federation", stack, config)
        here.join(0, 1, 2)
        vandal = here.odd(attack, 3)
        here.finish()
        until(lambda: f"{attack}: " in vandal.log.read_text(), LONG, "the attack")
        most = peak(here.made.service.link.process.pid)
        print("".join(line for line in vandal.log.open()), here.said, f"SuperLink: {most} MB")
        assert len(here.rows(0)) == len(here.rows(1)) == 4
        assert not here.rows(3)
        text = (here.out / "failures.csv").read_text()
        assert REASONS[attack] in text
        assert "\x1b" not in text
        assert not made.exists()
        assert most < 1000
        if attack == "giant":
            refused = int(vandal.log.read_text().split("giant: ")[1].split()[0])
            assert refused > 400, "64 MB of 2 GB were taken"
        seconds = [float(line.split(",")[2]) for line in (here.out / "rounds.csv").read_text().splitlines()[1:]]
        assert max(seconds) < 90, "a deadline is one, whatever a site holds back"


def peak(process):
    """MB of memory that it had at most."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024
