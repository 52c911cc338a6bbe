"""Personalised federated learning: FedPAC and the methods it is compared with.

    import fedpac

    result = fedpac.fit(model, clients, method="fedpac", rounds=20, lr=0.05)
    result.models[0].predict(x)

Names are imported when they are first used, so `import fedpac` is quick. No name here is that of a submodule: importing
the submodule would replace it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedpac.version import __version__

if TYPE_CHECKING:
    from fedpac.api import ClientModel, Result, fit, load_run
    from fedpac.client import Client
    from fedpac.config import Config, make_config
    from fedpac.data.own import from_arrays, from_folder, from_owners
    from fedpac.data.table_sites import from_tables
    from fedpac.errors import FedpacError
    from fedpac.federation import Federation
    from fedpac.message import Message
    from fedpac.methods import Method, find_method, list_methods
    from fedpac.methods.fedavg import FedAvg
    from fedpac.models import Classifier
    from fedpac.runs.execute import resume, run
    from fedpac.server import Server
    from fedpac.training import train

_HOME = {
    "fit": "api", "load_run": "api", "Result": "api", "ClientModel": "api",
    "run": "runs.execute", "resume": "runs.execute", "Config": "config", "make_config": "config",
    "Method": "methods", "list_methods": "methods", "find_method": "methods", "FedAvg": "methods.fedavg",
    "Client": "client", "Server": "server", "Message": "message", "Federation": "federation",
    "train": "training", "Classifier": "models", "FedpacError": "errors",
    "from_arrays": "data.own", "from_folder": "data.own", "from_owners": "data.own",
    "from_tables": "data.table_sites",
}  # fmt: skip

__all__ = [
    "Classifier",
    "Client",
    "ClientModel",
    "Config",
    "FedAvg",
    "Federation",
    "FedpacError",
    "Message",
    "Method",
    "Result",
    "Server",
    "__version__",
    "find_method",
    "fit",
    "from_arrays",
    "from_folder",
    "from_owners",
    "from_tables",
    "list_methods",
    "load_run",
    "make_config",
    "resume",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedpac' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fedpac.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
