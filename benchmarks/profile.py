"""Where the time of one client visit goes, by the spans of `fedpac run --profile`: both networks, both speed paths.

python -m benchmarks.profile WORKLOAD        one such visit, as JSON: {span: milliseconds}
"""

import json
import os
import subprocess
import sys

from benchmarks.common import ROOT, Target, machine, save, table

TURNS = 3


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    data: dict[str, dict[str, float]] = {}
    for dataset in ("fashion-mnist", "cifar10"):
        for kernels in ("1", "0"):
            name = f"{dataset}, {'native' if kernels == '1' else 'torch path'}"
            visits = [_visit(f"quick-{dataset}" if quick else dataset, kernels) for _ in range(1 if quick else TURNS)]
            data[name] = min(visits, key=lambda visit: sum(visit.values()))
    spans = dict.fromkeys(span for visit in data.values() for span in visit)
    rows = [
        [span, *(_share(visit, span) for visit in data.values())]
        for span in sorted(spans, key=lambda span: -max(visit.get(span, 0) for visit in data.values()))
    ]
    rows.append(["all", *(f"{sum(visit.values()):.0f} ms" for visit in data.values())])
    markdown = (
        f"{table(['milliseconds of one visit', *data], rows)}\n\nOne FedPAC visit to a client on one thread (features, "
        f"head, body, features, evaluation), the least disturbed of {TURNS}. `clients` is what is in no other span."
    )
    save("profile", data, markdown, begun)
    return []


def _share(visit: dict[str, float], span: str) -> str:
    spent = visit.get(span, 0.0)
    return f"{spent:.1f} ({spent / sum(visit.values()):.0%})"


def _visit(workload: str, kernels: str) -> dict[str, float]:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile", workload],
        cwd=ROOT, env={**os.environ, "FEDPAC_NATIVE": kernels}, check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    visit: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return visit


def child(workload: str) -> None:
    import torch

    from benchmarks.workloads import WORKLOADS, federation_parts
    from fedpac.engines.site import Job, Site
    from fedpac.methods import make_method
    from fedpac.server import Server
    from fedpac.timing import measuring

    torch.set_num_threads(1)
    scenario, task = federation_parts(WORKLOADS[workload])
    method = make_method("fedpac")
    site, server = Site(task, method, scenario.clients), Server(task)
    method.setup(server)
    # the first visit has nothing to align with: the second, which is measured, does
    up = site.work(Job("learn-and-score", 0, 1, method.send(server, 0))).up
    assert up is not None
    method.merge(server, {0: up})
    job = Job("learn-and-score", 0, 2, method.send(server, 0))
    with measuring() as clock:
        site.work(job)
        spent = clock.take()
    print(json.dumps({"/".join(span[1:]) or span[0]: 1e3 * seconds for span, seconds in spent.items()}))


if __name__ == "__main__":
    child(sys.argv[1])
