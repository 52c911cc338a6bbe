"""What the memory of a real `fedpac serve` holds in mid-run: nothing of encrypted weights, much of what is readable."""

import os
import signal
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from processes import command, rounds_in, running, until

from fedpac.data.config import DataConfig
from fedpac.data.scenario import build
from fedpac.deploy.certs import SITES_ONLY, make_certificates
from fedpac.deploy.superlink import free_port
from fedpac.deploy.trial import join_command
from fedpac.message import Message
from fedpac.privacy import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="reads another process's memory"),
]

SITES = ["clinic-0", "clinic-1", "clinic-2", "clinic-3"]
LOOKS = (2, 4, 6)  # after these rounds
REMEMBERING = '''
from fedpac.methods.fedpac import FedPAC

class Remembering(FedPAC):
    """FedPAC whose clients keep what they send and receive, so that a test knows what to look for."""
    name = "remembering"
    title = "Remembering"

    def local(self, client, down):
        up = super().local(client, down)
        client.state["sent"] = {**up.weights("w"), **up.weights("head")}
        client.state["received"] = {**down.weights("w"), **down.weights("head")}
        client.state["readable"] = up.weights("statistics")
        return up
'''


@contextmanager
def serving(folder, encryption):
    """`fedpac serve` with four sites that have data of their own; gives the server's process and all of them."""
    certs, port, ckks = folder / "certs", free_port(), []
    make_certificates(certs, ["localhost"], SITES, ckks=encryption == "ckks")
    if encryption == "ckks":
        (certs / SITES_ONLY / KEY).rename(folder / KEY)  # the server must not have it
        ckks = ["--ckks", str(folder / KEY)]
    (folder / "federation.toml").write_text(
        'method = "remembering:Remembering"\nmodel = "paper"\ntraining = {epochs = 1, batch = 10}\n'
        f'privacy = {{encryption = "{encryption}"}}\nrun = {{rounds = 400, deadline = 120.0}}\n'
        f"federation = {{sites = {SITES}, classes = 10, shape = [1, 28, 28]}}\n"
    )
    serve = ["serve", folder / "federation.toml", "--address", f"127.0.0.1:{port}", "--certs", certs]
    clients = build(DataConfig(dataset="digits", clients=len(SITES), samples=10, test_samples=10), 0).clients
    with ExitStack() as stack:
        server = stack.enter_context(command(folder, *serve, "--out", folder / "run", "--patience", 300))
        processes = [server]
        for site, client in zip(SITES, clients, strict=True):
            x, y = client.train.pool.x[client.train.index].numpy(), client.train.labels().numpy()
            np.savez(folder / f"{site}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
            joining = join_command(f"127.0.0.1:{port}", site, certs, folder / "state" / site)
            own = ["--data", str(folder / f"{site}.npz"), "--own-methods"]
            processes.append(stack.enter_context(running([*joining, *own, *ckks], folder, site)))
        yield server, processes


def look(folder, server, processes):
    """(needles of each kind at the sites, what the server's processes hold, what its files hold), at one moment."""
    everybody = {each for process in processes for each in family(process.pid)}
    for process in everybody:
        os.kill(process, signal.SIGSTOP)
    try:
        needles = {"weights": set(), "readable": set()}
        for file in (folder / "state").rglob("client-*-round-*.safetensors"):
            if int(file.stem.rsplit("-", 1)[1]) > 1:
                kept = Message.from_bytes(file.read_bytes())
                needles["weights"] |= pieces({**prefixed("a", kept["sent"]), **prefixed("b", kept["received"])})
                needles["readable"] |= pieces(kept["readable"])
        held = [region for process in family(server.pid) for region in memory_of(process)]
        files = [*(folder / "run").rglob("*"), *(folder / ".run-server").rglob("*")]
        return needles, held, [file.read_bytes() for file in files if file.is_file()]
    finally:
        for process in everybody:
            os.kill(process, signal.SIGCONT)


def prefixed(prefix, weights):
    return {f"{prefix} {name}": tensor for name, tensor in weights.items()}


def pieces(weights):
    """Eight neighbouring values of each tensor, as they are and as float64."""
    found = set()
    for tensor in weights.values():
        flat = tensor.flatten()
        candidates = (flat[at : at + 8] for at in range(flat.numel() // 2, flat.numel() - 7, 8))
        piece = next((each for each in candidates if each.unique().numel() == 8), None)
        if piece is not None and piece.is_floating_point():
            found |= {piece.numpy().tobytes(), piece.double().numpy().tobytes()}
    return found


def family(process):
    """A process and all that descend from it."""
    found = [process]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def memory_of(process):
    """All that a process can write to, region by region."""
    regions = []
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(at, 16) for at in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                regions.append(memory.read(end - start))
    return regions


def those_in(data, needles):
    """Which needles are in the data, at whatever place: by their second word, then as a whole."""
    high, low, by_word = np.zeros(2**16, bool), np.zeros(2**16, bool), {}
    for needle in needles:
        word = int.from_bytes(needle[4:8], "little")
        by_word.setdefault(word, []).append(needle)
        high[word >> 16] = low[word & 0xFFFF] = True
    found = set()
    for shift in range(4):
        words = np.frombuffer(data, np.uint32, max(len(data) - shift, 0) // 4, min(shift, len(data)))
        places = np.flatnonzero(high[words >> 16])
        for place in places[low[words[places] & 0xFFFF]]:
            start = shift + 4 * int(place) - 4
            for needle in by_word.get(int(words[place]), ()):
                if data[start : start + len(needle)] == needle:
                    found.add(needle)
    return found


def search(folder, encryption):
    """(how many needles of each kind are known, how many of them the server held), over three looks at a run."""
    folder.mkdir()
    known, found = {"weights": set(), "readable": set()}, {"weights": set(), "readable": set()}
    with serving(folder, encryption) as (server, processes):
        if encryption == "ckks":
            secret = (folder / KEY).read_bytes()
            known["secret"], found["secret"] = (
                {secret[at : at + 32] for at in range(1000, len(secret) - 32, 5000)},
                set(),
            )
        for rounds in LOOKS:
            until(lambda rounds=rounds: rounds_in(folder / "run") >= rounds, 300, f"{rounds} rounds")
            needles, held, files = look(folder, server, processes)
            for kind, new in needles.items():
                known[kind] |= new
            for data in held + files:
                for kind, sought in known.items():
                    found[kind] |= those_in(data, sought)
    return {kind: (len(found[kind]), len(known[kind])) for kind in known}


def test_it_finds_what_is_there():
    needle = np.arange(1, 9, dtype=np.float32).tobytes()
    for shift in range(8):
        assert those_in(b"\1" * (4096 + shift) + needle + b"\2" * 100, {needle}) == {needle}
    assert those_in(b"\1" * 4096 + needle[:-1], {needle}) == set()


def test_the_memory_of_fedpac_serve_holds_no_weight_where_they_are_encrypted(tmp_path, monkeypatch):
    """`fedpac serve`, its SuperLink and their files against all that sites sent and received after the first round."""
    (tmp_path / "remembering.py").write_text(REMEMBERING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    plain = search(tmp_path / "plain", "none")
    hidden = search(tmp_path / "hidden", "ckks")
    print(f"found of known: plain {plain}, encrypted {hidden}")
    for run in (plain, hidden):
        assert run["weights"][1] >= 100
        assert run["readable"][0] >= 0.2 * run["readable"][1], "what the server may read is found"
    assert plain["weights"][0] >= 0.2 * plain["weights"][1], "plain weights are found where there are some"
    assert hidden["weights"][0] == 0
    assert hidden["secret"] == (0, hidden["secret"][1])
    assert hidden["secret"][1] > 10
