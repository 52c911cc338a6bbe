"""Cuts one site's network for a minute. Run as `unshare -rn python cut_network.py FOLDER`: it makes its own networks.

The server and three sites are in this network namespace, the fourth site is in one of its own, behind a cable (veth).
"""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import processes
from test_faults import Trial, config_of

MINUTE = 60.0
SERVER, SITE = "10.77.0.1", "10.77.0.2"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def cable(holder):
    """Between this namespace and that of a process."""
    ip("link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(holder))
    ip("addr", "add", f"{SERVER}/24", "dev", "here")
    ip("link", "set", "here", "up")
    inside = ["nsenter", "-t", str(holder), "-n"]
    for command in (f"addr add {SITE}/24 dev there", "link set there up", "link set lo up"):
        subprocess.run([*inside, "ip", *command.split()], check=True)
    return inside


def main(folder):
    ip("link", "set", "lo", "up")
    holder = subprocess.Popen(["unshare", "-n", "sleep", "3600"])
    processes.until(lambda: namespace(holder.pid) != namespace("self"), 10, "a namespace of its own")
    with ExitStack() as stack:
        stack.callback(holder.kill)
        inside = cable(holder.pid)
        here = Trial(folder, stack, config_of(5000, run__min_replies=3, run__deadline=10.0), host=SERVER)
        here.join(0, 1, 2)
        stack.enter_context(here.made.join(3, here.data, before=inside))
        here.until_round(3)
        assert here.rows(3), "the fourth site takes part"
        ip("link", "set", "here", "down")
        cut, before = time.monotonic(), processes.rounds_in(here.out)
        # the others' way to the server does not go through the cable
        processes.until(lambda: time.monotonic() - cut > MINUTE, 2 * MINUTE, "a minute")
        during = processes.rounds_in(here.out)
        missed = set(range(before + 2, during)) - {row[0] for row in here.rows(3)}
        ip("link", "set", "here", "up")
        here.until_heard("site 'client-3' did not reply within 10 s")
        here.until_connected(2)
        back = max(row[0] for row in here.rows(0))
        here.until(lambda: max(row[0] for row in here.rows(3)) > back, "it takes part again")
        rows = here.rows()
        assert len(rows) == len(set(rows)), "a result was counted twice"
        print(f"rounds before {before}, at the end of the cut {during}, {len(missed)} without the site")
        assert during > before + 5, "the round goes on without it"
        assert missed


def namespace(process):
    return Path(f"/proc/{process}/ns/net").readlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "federation")
