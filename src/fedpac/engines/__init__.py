"""How the clients' work is run: the only thing that differs between a laptop, a cluster and real sites."""

from collections.abc import Callable
from typing import TypeAlias

from fedpac.engines.auto import AutoEngine
from fedpac.engines.base import Engine, Simulation
from fedpac.engines.process import ProcessEngine
from fedpac.engines.ray import RayEngine
from fedpac.engines.serial import SerialEngine
from fedpac.engines.site import DataSource
from fedpac.errors import ConfigError, unknown
from fedpac.methods.base import Method
from fedpac.task import Task

# called with task, method, source, the number of workers and the deadline of a job in seconds
Factory: TypeAlias = Callable[[Task, Method, DataSource, int | None, float | None], Engine]


def _serial(task: Task, method: Method, source: DataSource, workers: int | None, deadline: float | None) -> Engine:
    if deadline is not None:
        raise ConfigError("engine 'serial' cannot end a client that is late: with a deadline, use 'auto' or 'process'")
    return SerialEngine(task, method, source)


ENGINES: dict[str, Factory] = {
    "auto": AutoEngine,
    "process": ProcessEngine,
    "ray": RayEngine,
    "serial": _serial,
}

__all__ = ["ENGINES", "AutoEngine", "Engine", "ProcessEngine", "RayEngine", "SerialEngine", "Simulation", "make_engine"]


def make_engine(
    name: str,
    task: Task,
    method: Method,
    source: DataSource,
    workers: int | None = None,
    deadline: float | None = None,
) -> Engine:
    if name == "flower":
        raise ConfigError("engine 'flower' runs in processes of its own: start it with 'fedpac run --engine flower'")
    if name not in ENGINES:
        raise ConfigError(unknown("engine", name, ENGINES))
    return ENGINES[name](task, method, source, workers, deadline)
