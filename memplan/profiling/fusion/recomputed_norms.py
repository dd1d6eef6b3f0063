"""Recomputation of norms' results from their input and the statistics that are kept for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...program.program import Call, Operation, Program, Ref
from ...torch_support.torch_operators import FUNCTIONAL_BATCH_NORM

aten: Any = torch.ops.aten

STATISTICS = (1, 2)
"""Positions of the statistics among the results, the same in all norms: the mean, and one over the
deviation.
"""


class NormRecomputation(NamedTuple):
    """Recomputation of a norm's result from its statistics.

    make: computes the result from the call's arguments and the statistics.
    inputs: positions, among the arguments, of the tensors that it reads.
    """

    make: Callable[..., Tensor]
    inputs: tuple[int, ...] = (0, 1, 2)

    def makes(self, program: Program, operation: Operation, storage: int) -> bool:
        """Tell whether the storage is the result, and the statistics are there."""
        made: list[Any] = [None if v is None else program.values[v] for v in operation.call.outputs]
        there = all(made[i] is not None and 0 not in made[i].shape for i in STATISTICS)
        return made[0] is not None and made[0].storage == storage and there

    def values(self, call: Call) -> list[int]:
        """Return the values that the recomputation reads."""
        given = [call.arguments[i] for i in self.inputs]
        statistics = [call.outputs[i] for i in STATISTICS]
        return [x.value for x in given if isinstance(x, Ref)] + [x for x in statistics if x is not None]

    def storages(self, program: Program, operation: Operation) -> Iterator[int]:
        return (program.values[value].storage for value in self.values(operation.call))


def _layer_norm(mean: Tensor, scale: Tensor, x: Tensor, *rest: Any) -> Tensor:
    _shape, weight, bias, *_epsilon = rest
    # Statistics may be in float32 while the input has half precision.
    return _scaled((x - mean) * scale, weight, bias).to(x.dtype)


def _group_norm(mean: Tensor, scale: Tensor, x: Tensor, *rest: Any) -> Tensor:
    weight, bias, _n, channels, _size, groups, *_epsilon = rest
    shape = [x.shape[0], groups, channels // groups, *x.shape[2:]]
    ones = [1] * (len(shape) - 2)
    # Statistics have the shape (batch, groups).
    parts = [each.view(*mean.shape, *ones) for each in (mean, scale)]
    normal = ((x.reshape(shape) - parts[0]) * parts[1]).reshape(x.shape)
    return _by_channel(normal, weight, bias).to(x.dtype)


def _batch_norm(mean: Tensor, scale: Tensor, x: Tensor, *rest: Any) -> Tensor:
    shape = [-1, *[1] * (x.dim() - 2)]
    return _by_channel((x - mean.view(shape)) * scale.view(shape), *rest[:2]).to(x.dtype)


def _by_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = [-1, *[1] * (x.dim() - 2)]
    return _scaled(x, *(None if each is None else each.view(shape) for each in (weight, bias)))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


RECOMPUTED: Mapping[Any, NormRecomputation] = {
    aten.native_layer_norm.default: NormRecomputation(_layer_norm, (0, 2, 3)),
    aten.native_group_norm.default: NormRecomputation(_group_norm),
    FUNCTIONAL_BATCH_NORM: NormRecomputation(_batch_norm),
}


def recomputed_call(call: Call, arguments: Sequence[Any], statistics: Sequence[Tensor]) -> Tensor:
    """Recompute the norm's result.

    arguments: the call's.
    """
    return RECOMPUTED[call.target].make(*statistics, *arguments)
