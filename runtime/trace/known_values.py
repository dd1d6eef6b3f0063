"""While tracing on shapes alone, the values that follow from shapes alone: positions, causal masks, buckets.

Models branch on such values (`if (positions == 0).all():`), and the branch is the same in every iteration:
the trace may follow it, as eager does. What follows from inputs, buffers or parameters stays unknown, and
a branch on it is refused: it could go another way in the next iteration.

Beside each fake tensor made of nothing but known values and numbers, the real one is kept.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.randomness import draws
from ..torch_internals import (
    ASKS_FOR_A_NUMBER,
    TorchDispatchMode,
    WeakIdKeyDictionary,
    memory_of,
    no_dispatch_modes,
    schema_of,
    tree_leaves,
    tree_map,
)

MOST_ELEMENTS = 2**22
"""A larger tensor is not kept. No model is known that branches on one."""

aten: Any = torch.ops.aten
_ASKS = {ASKS_FOR_A_NUMBER, aten.is_nonzero.default}
_SHAPE_ALONE = {
    each.default
    for each in (
        *(aten.ones_like, aten.zeros_like, aten.full_like, aten.new_ones, aten.new_zeros, aten.new_full),
        *(aten.empty_like, aten.new_empty, aten.new_empty_strided),
    )
}
"""What these return does not depend on the values of their tensor."""


class KnownValues(TorchDispatchMode):
    """Stands before the trace: answers what is known, passes everything on.

    _known: fake tensor -> real one, on the CPU; views of one are views of the other. _spoilt: memory into
    which something unknown has been written since.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: Any = WeakIdKeyDictionary()
        self._spoilt: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = func in _SHAPE_ALONE or all(map(self._is_known, tensors))
        known = known and not draws(func, args, kwargs)
        if known and func in _ASKS:
            return self._really(func, args, kwargs)
        made = func(*args, **kwargs)
        if schema_of(func).is_mutable and not known:
            self._spoilt.update((memory_of(tensor), tensor.untyped_storage()) for tensor in tensors)
        if known and _is_small(made):
            for fake, real in zip(
                tree_leaves(made), tree_leaves(self._really(func, args, kwargs)), strict=True
            ):
                if isinstance(fake, Tensor):
                    self._known[fake] = real
        return made

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor in self._known and memory_of(tensor) not in self._spoilt

    def _really(self, func: Any, args: Any, kwargs: Any) -> Any:
        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            if isinstance(leaf, Tensor):
                return (
                    self._known[leaf] if self._is_known(leaf) else torch.empty(leaf.shape, dtype=leaf.dtype)
                )
            return leaf

        with no_dispatch_modes():
            return func(*tree_map(real, args), **tree_map(real, kwargs))


def _is_small(made: Any) -> bool:
    leaves = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
    return bool(leaves) and all(leaf.numel() <= MOST_ELEMENTS for leaf in leaves)
