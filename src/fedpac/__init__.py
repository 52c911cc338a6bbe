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
    from fedpac.api import Result, fit, load_run
    from fedpac.bundles import Model, load_model
    from fedpac.bundles.client_model import ClientModel
    from fedpac.callbacks import Callback, EarlyStopping
    from fedpac.client import Client
    from fedpac.config import Config, make_config
    from fedpac.data.collections import from_datasets
    from fedpac.data.images import Pictures
    from fedpac.data.own import from_arrays, from_folder, from_owners
    from fedpac.data.table_sites import from_tables
    from fedpac.errors import FedpacError
    from fedpac.federation import Federation
    from fedpac.message import Message
    from fedpac.methods import Method, find_method, list_methods
    from fedpac.methods.fedavg import FedAvg
    from fedpac.models import Classifier, split
    from fedpac.runs.execute import resume, run
    from fedpac.server import Server
    from fedpac.tracking import Log, MLflow, TensorBoard
    from fedpac.training import train

_HOME = {
    "fit": "api", "load_run": "api", "Result": "api",
    "ClientModel": "bundles.client_model", "Model": "bundles", "load_model": "bundles",
    "run": "runs.execute", "resume": "runs.execute", "Config": "config", "make_config": "config",
    "Method": "methods", "list_methods": "methods", "find_method": "methods", "FedAvg": "methods.fedavg",
    "Client": "client", "Server": "server", "Message": "message", "Federation": "federation",
    "train": "training", "Classifier": "models", "split": "models", "FedpacError": "errors",
    "from_arrays": "data.own", "from_folder": "data.own", "from_owners": "data.own",
    "Callback": "callbacks", "EarlyStopping": "callbacks",
    "Log": "tracking", "TensorBoard": "tracking", "MLflow": "tracking",
    "from_tables": "data.table_sites", "from_datasets": "data.collections", "Pictures": "data.images",
}  # fmt: skip

__all__ = [
    "Callback",
    "Classifier",
    "Client",
    "ClientModel",
    "Config",
    "EarlyStopping",
    "FedAvg",
    "Federation",
    "FedpacError",
    "Log",
    "MLflow",
    "Message",
    "Method",
    "Model",
    "Pictures",
    "Result",
    "Server",
    "TensorBoard",
    "__version__",
    "find_method",
    "fit",
    "from_arrays",
    "from_datasets",
    "from_folder",
    "from_owners",
    "from_tables",
    "list_methods",
    "load_model",
    "load_run",
    "make_config",
    "resume",
    "run",
    "split",
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
