"""Norms of gradients that are spread over ranks, in a program that communicates.

    w1.grad.norm ─┐
    w2.grad.norm ─┴▶ stack ─▶ add up squares over one group ─▶ … over another ─▶ clip

This is what PyTorch does with DTensors of one mesh: if any of them is sharded in a dimension of the mesh, the
norms of all are added up over it, and one that is replicated there is divided first, so that it counts once.
An ordinary tensor, which PyTorch does not take besides, counts as a replicated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..devices.calls.collectives import Collective, Issued
from ..devices.sharded.local_tensors import sharded_dimensions
from ..devices.sharded.ranks import Ranks
from ..torch_support.torch_collectives import all_reduce, name_of_group
from .clipping import sum_squares


class NormSum(Collective):
    """The sum over a group of the squares of norms, as norms. Its arguments are an all-reduce's."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(all_reduce(), ranks)
        self.__name__ = "sum_of_squares"

    def __call__(self, *arguments: Any) -> Tensor:
        made, run = self.issue(*arguments)
        run()
        return made

    @property
    def can_be_issued(self) -> bool:
        return True

    def issue(self, *arguments: Any) -> Issued:
        made = arguments[0].clone()
        return made, partial(sum_squares, self.among(arguments).add_up, made)


class NormStack(NamedTuple):
    """Norms that are added up together.

    names: of the parameters. divisors: of each norm, one after the other. groups: labels of the groups over
    which they are added up, in order.
    """

    names: list[str]
    divisors: list[tuple[float, ...]]
    groups: list[str]


class NormSums(NamedTuple):
    """The sums that the norms of a module's gradients need.

    ranks: of the plan. collective: that adds up. module: the module.
    """

    ranks: Ranks
    collective: NormSum
    module: nn.Module

    def stacks(self, names: Sequence[str]) -> list[NormStack]:
        """Return the norms of these parameters' gradients, those of one mesh together."""
        weights = {name: self.module.get_parameter(name) for name in names}
        meshes = dict.fromkeys(each.device_mesh for each in weights.values() if isinstance(each, DTensor))
        first, found = next(iter(meshes)), list[NormStack]()
        for mesh in meshes:
            # An ordinary tensor counts with the first mesh.
            own = {
                name: each for name, each in weights.items() if getattr(each, "device_mesh", first) == mesh
            }
            dimensions = {name: sharded_dimensions(each) for name, each in own.items()}
            summed = sorted({dimension for each in dimensions.values() for dimension in each})
            divisors = [
                # The square of a replicated norm is added up once per rank of the dimension.
                tuple(sqrt(mesh.size(dimension)) for dimension in summed if dimension not in each)
                for each in dimensions.values()
            ]
            groups = [self.ranks.label(name_of_group(mesh.get_group(dimension))) for dimension in summed]
            found.append(NormStack(list(own), divisors, groups))
        return found


def norm_sums(module: nn.Module, ranks: Ranks | None) -> NormSums | None:
    """Return the sums that a module's norms need; None if each rank has whole gradients."""
    if ranks is None or not any(map(sharded_dimensions, module.parameters())):
        return None
    return NormSums(ranks, NormSum(ranks), module)


def stack(divisors: Sequence[Sequence[float]], *norms: Tensor) -> Tensor:
    """Return norms as one tensor, each divided first."""
    made = list[Tensor]()
    for each, numbers in zip(norms, divisors, strict=True):
        for number in numbers:
            # One after the other, as DTensor does: their product rounds otherwise.
            each = each / number
        made.append(each)
    return torch.stack(made)
