"""How the clients' work is run: the only thing that differs between a laptop, a cluster and real sites."""

from collections.abc import Sequence

from fedpac.data.clients import ClientData
from fedpac.engines.auto import AutoEngine
from fedpac.engines.base import Engine
from fedpac.engines.process import ProcessEngine
from fedpac.engines.serial import SerialEngine
from fedpac.errors import ConfigError, unknown
from fedpac.methods.base import Method
from fedpac.task import Task

ENGINES = ("auto", "process", "serial")

__all__ = ["ENGINES", "AutoEngine", "Engine", "ProcessEngine", "SerialEngine", "make_engine"]


def make_engine(
    name: str, task: Task, method: Method, data: Sequence[ClientData], workers: int | None = None
) -> Engine:
    if name == "serial":
        return SerialEngine(task, method, data)
    if name == "auto":
        return AutoEngine(task, method, data, workers)
    if name == "process":
        return ProcessEngine(task, method, data, workers)
    raise ConfigError(unknown("engine", name, ENGINES))
