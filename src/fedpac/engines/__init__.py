"""How the clients' work is run: the only thing that differs between a laptop, a cluster and real sites.

One file for each: adding a file with an `Engine` that has a name is all it takes to add one.
"""

import importlib
import pkgutil
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
FEDERATION = "flower"  # real sites, in processes of their own


def _found() -> dict[str, Factory]:
    found: dict[str, Factory] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.ispkg:
            for item in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
                if isinstance(item, type) and issubclass(item, Engine) and "name" in vars(item):
                    found[item.name] = item
    return dict(sorted(found.items()))


ENGINES = _found()

__all__ = ["ENGINES", "AutoEngine", "Engine", "ProcessEngine", "RayEngine", "SerialEngine", "Simulation", "make_engine"]


def known_engine(name: str) -> str:
    """The name, if there is such an engine."""
    known = {*ENGINES, FEDERATION}
    if name not in known:
        raise ConfigError(unknown("engine", name, known))
    return name


def make_engine(
    name: str,
    task: Task,
    method: Method,
    source: DataSource,
    workers: int | None = None,
    deadline: float | None = None,
) -> Engine:
    if known_engine(name) == FEDERATION:
        raise ConfigError("engine 'flower' needs its own processes: start it with 'fedpac run --engine flower'")
    return ENGINES[name](task, method, source, workers, deadline)
