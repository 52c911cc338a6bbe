"""The model that one client ends up with, while its data and the run are still there."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from fedpac.bundles.writing import Origin, write_bundle
from fedpac.data.clients import ClientData, Scenario
from fedpac.errors import ConfigError, FedpacError
from fedpac.files import explained, write_atomically
from fedpac.methods import Method
from fedpac.methods.base import Which
from fedpac.metrics import SEPARATOR, in_own_units, measure, validated
from fedpac.prediction import Inputs, Predictor, class_names_of
from fedpac.task import Task
from fedpac.threads import one_thread
from fedpac.training import logits

OTHER_FORMATS = (".onnx", ".pt", ".pth", ".pkl", ".bin", ".h5")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ClientModel(Predictor):
    """One client's model. `module` is the torch module itself; it takes normalised samples."""

    client: int
    which: Which
    method: str
    title: str
    data: ClientData
    task: Task
    network: str | None = None  # what the run's config calls it
    provenance: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ClientModel(client={self.client}, which={self.which!r}, method={self.method!r})"

    @property
    def name(self) -> str:
        return self.data.name or f"client {self.client}"

    def metrics(self) -> dict[str, Any]:
        """On the client's own test data; a newcomer may have none."""
        if not len(self.data.test):
            return {}
        x, y = self.data.test.tensors()
        names = validated(self.task.metrics, self.task.classes)
        with one_thread():
            y, outputs = in_own_units(self.data.unit, y, logits(self.module, self.task.cast(x)))
        found = measure(names, "test", y, outputs)
        return {"samples": len(y), **{name.partition(SEPARATOR)[2]: value for name, value in found.items()}}

    def save(self, path: Path | str, licence: str = "", onnx: bool = True) -> Path:
        """A bundle in a new folder, for fedpac.load_model; or a file x.safetensors with the weights alone.

        onnx   with model.onnx, where the model can be expressed in it; model.json says why if not
        """
        path = Path(path)
        if path.suffix == ".safetensors":
            return self._save_weights(path)
        if path.suffix in OTHER_FORMATS:
            raise ConfigError(
                f"{path} cannot be a {path.suffix} file: a bundle is a folder, such as {path.stem}/ (with a model.onnx "
                f"in it), and weights alone go to {path.stem}.safetensors"
            )
        origin = Origin(
            self.name, self.method, self.title, self.which, self.network, self.metrics(), self.provenance
        )  # fmt: skip
        write_bundle(path, self, self.task.model, origin, licence, onnx)
        return path

    def _save_weights(self, path: Path) -> Path:
        """Under the names of the module's own state_dict."""
        weights = self.module.state_dict()
        if weights.keys() != self.task.model.state_dict().keys():
            raise FedpacError(
                f"the {self.which} model of {self.method} is more than one network and cannot be saved as one; "
                "save it as a bundle, in a folder"
            )
        pool = self.data.train.pool
        about = {
            "method": self.method, "client": self.client, "which": self.which, "classes": self.task.classes,
            "shape": list(pool.x.shape[1:]), "mean": pool.mean, "std": pool.std,
        }  # fmt: skip
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: tensor.detach().contiguous().clone() for name, tensor in sorted(weights.items())}
            write_atomically(path, save(tensors, {"fedpac": json.dumps(about)}))
        return path


def client_model(
    module: nn.Module,
    client: int,
    which: Which,
    method: Method,
    task: Task,
    scenario: Scenario,
    network: str | None = None,
    provenance: dict[str, Any] | None = None,
    newcomer: ClientData | None = None,
) -> ClientModel:
    """newcomer: the data of a client that is not among the scenario's; its samples have the form of theirs"""
    data, fitted = newcomer or scenario.clients[client], scenario.preprocessing
    pool = scenario.clients[0].train.pool
    return ClientModel(
        module.eval().to("cpu"), Inputs.of(pool, task, scenario.images), class_names_of(scenario), fitted,
        fitted.absent.get(data.name, ()) if fitted is not None else (), client=client, which=which, method=method.name,
        title=method.title, data=data, task=task, network=network, provenance=provenance or {},
    )  # fmt: skip
