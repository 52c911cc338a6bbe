"""A contender: rounds of fedpac itself.   python -m benchmarks.ours WORKLOAD METHOD [--evaluate] [--engine NAME]"""

import argparse

from benchmarks.contender import serve
from benchmarks.workloads import WORKLOADS, federation_parts, participation
from fedpac.engines import make_engine
from fedpac.evaluation import Evaluation
from fedpac.federation import Federation
from fedpac.methods import make_method
from fedpac.methods.base import Which
from fedpac.sampling import Uniform


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("method")
    parser.add_argument("--evaluate", action="store_true", help="both evaluations in every round")
    parser.add_argument("--engine", default="process")
    chosen = parser.parse_args()

    workload = WORKLOADS[chosen.workload]
    scenario, task = federation_parts(workload)
    method = make_method(chosen.method)
    with make_engine(chosen.engine, task, method, scenario.clients, 2) as engine:
        federation = Federation(
            task, method, engine,
            sampler=Uniform(participation(workload, scenario)),
            evaluation=Evaluation(1 if chosen.evaluate else task.rounds),
        )  # fmt: skip

        def unit() -> dict[str, float]:
            report = federation.step()

            def mean(which: Which) -> float:
                return sum(report.accuracies(which)) / len(report.accuracies(which))

            return {"personal": mean("personal"), "received": mean("received")} if chosen.evaluate else {}

        serve(unit)


if __name__ == "__main__":
    main()
