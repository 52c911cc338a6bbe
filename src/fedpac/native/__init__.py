"""The native speed path: C++ kernels built on first use, with plain torch as the fallback.

Importing this package neither compiles nor imports torch; both wait until they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpac.native.build import available, library, reason

if TYPE_CHECKING:
    from fedpac.native.fusion import FusedConvPool, accelerate, plain
    from fedpac.native.ops import conv_pool_act

__all__ = ["FusedConvPool", "accelerate", "available", "conv_pool_act", "library", "plain", "reason"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fedpac.native import fusion

        return getattr(fusion, name)
    raise AttributeError(name)
