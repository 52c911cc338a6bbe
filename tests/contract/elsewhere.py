"""A second device for machines that have none: its tensors live on the CPU, but say that they are elsewhere.

As on a real one, an operation on tensors of two devices is an error. What passes between the two is counted: `sent` to
the device, and `read` from it, which waits for all that the device still has to do.

A device is for the whole process and for ever, so this is imported in a process of its own.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from fedpac.engines import AutoEngine
from fedpac.methods import make_method
from helpers import Finished, run_federation, tiny_data, tiny_images

aten = torch.ops.aten
CPU = torch.device("cpu")
READING = (aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.bincount.default)
passed = {"sent": 0, "read": 0}


class Module(_DummyBackendModule):
    """torch.elsewhere. Its random numbers are the CPU's."""

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None: ...

    def manual_seed(self, seed: int) -> None: ...


_setup_privateuseone_for_python_backend("elsewhere", backend_module=Module())
DEVICE = torch.device("elsewhere", 0)


class Elsewhere(Tensor):
    @staticmethod
    def __new__(cls, here: Tensor) -> "Elsewhere":
        return Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype,
            device=DEVICE,
        )  # fmt: skip

    def __init__(self, here: Tensor) -> None:
        self.here = here

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.here})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin = Elsewhere(self.here.detach().clone()).requires_grad_(self.requires_grad)
        twin.__dict__.update({key: value for key, value in self.__dict__.items() if key == "_is_param"})
        return twin

    @property  # type: ignore[override]
    def data(self) -> "Elsewhere":
        return Elsewhere(self.here.detach())

    @data.setter
    def data(self, value: "Elsewhere") -> None:
        self.here = value.here

    def tolist(self) -> Any:
        passed["read"] += 1
        return self.here.tolist()

    def data_ptr(self) -> int:
        raise AssertionError("the memory of another device is not for native code")

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        flat, structure = tree_flatten((args, kwargs or {}))
        tensors = [t for t in flat if isinstance(t, Tensor)]
        if operation is aten.copy_.default:
            return copy(*args[:2])
        if any(t.dim() for t in tensors if not isinstance(t, Elsewhere)):  # numbers may be anywhere, as with CUDA
            raise RuntimeError(f"{operation}: tensors on {', '.join(str(t.device) for t in tensors)}")
        passed["read"] += operation in READING
        there = (kwargs or {}).get("device")
        plain_args, plain_kwargs = tree_unflatten([here(t) for t in flat], structure)
        if there is not None:
            plain_kwargs["device"] = CPU
        result = operation(*plain_args, **plain_kwargs)
        if operation is aten._to_copy.default and there is not None and torch.device(there) == CPU:
            passed["read"] += 1
            return result
        return return_and_correct_aliasing(operation, args, kwargs or {}, tree_map_only(Tensor, Elsewhere, result))


def here(value: Any) -> Any:
    return value.here if isinstance(value, Elsewhere) else value


def copy(to: Tensor, source: Tensor) -> Tensor:
    passed["sent"] += isinstance(to, Elsewhere) and not isinstance(source, Elsewhere)
    passed["read"] += isinstance(source, Elsewhere) and not isinstance(to, Elsewhere)
    here(to).copy_(here(source))
    return to


@torch.library.impl("aten::_copy_from", "PrivateUse1")
def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    return copy(to, source)


@torch.library.impl("aten::empty.memory_format", "PrivateUse1")
def _empty(size: Any, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return Elsewhere(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


@torch.library.impl("aten::empty_strided", "PrivateUse1")
def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl("aten::arange", "PrivateUse1")
def _arange(end: Any, dtype: Any = None, **_: Any) -> Tensor:
    return Elsewhere(torch.arange(end, dtype=dtype))


# --- what is done there -------------------------------------------------------------------------------------------


def federation(name: str, settings: dict[str, Any], **changes: Any) -> tuple[list[Any], dict[str, bytes]]:
    """Scores and states of a whole federation whose clients train on the device."""
    ran = run_there(name, settings, **changes)
    return ran.scores(), ran.bytes()


def run_there(name: str, settings: dict[str, Any], **changes: Any) -> Finished:
    torch.set_num_threads(1)
    return run_federation(make_method(name, settings), engine=AutoEngine, device="elsewhere", **changes)


def traffic(name: str, augmented: bool, **changes: Any) -> dict[str, int]:
    """What passed between the two devices in a round in which one client learns."""
    data, model = tiny_images() if augmented else (tiny_data((40,)), None)
    passed.update(sent=0, read=0)
    run_there(name, {}, rounds=1, data=data, model=model, **changes)
    return dict(passed)
