"""A module on `meta` whose shares are read from files: each rank reads its own rows, none has the whole.

    file     rows 0 … d0 of each weight, mapped
    rank     rows [rank · c, (rank + 1) · c), read into its share when the step is made

From then on it is as a module that FSDP2 has wrapped: its weights are spread before the first plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ...devices.sharded.ranks import Ranks
from ...devices.sharded.shards import Shards, checksum, local_of
from ...graphs.errors import InputError, MismatchError
from .weights import find_values


@contextmanager
def spread_from_files(
    module: nn.Module, optimizer: torch.optim.Optimizer, shards: Shards, weights: Path
) -> Generator[None]:
    """Read this rank's shares of a module on meta; if what follows fails it is on meta as before.

    All ranks call it together. Raises MemplanError, on all of them.
    """
    ranks = shards.ranks
    undo = _spread(module, optimizer, shards, weights)
    try:
        ranks.together(partial(_fill_buffers, module, weights, ranks.device))
        # Replicas average gradients, not weights: a difference would last.
        _check_replicas(ranks, module)
        yield
    # Interrupts too: a half-spread module could be neither planned nor filled.
    except BaseException:
        undo()
        raise


def _spread(
    module: nn.Module, optimizer: torch.optim.Optimizer, shards: Shards, weights: Path
) -> Callable[[], None]:
    """Read the shares; the files are mapped until this returns. Returns a function that undoes it."""
    values = shards.ranks.together(partial(_values, module, weights))
    _check_files(shards.ranks, weights, values)
    return shards.ranks.together(partial(shards.spread, module, optimizer, values))


def _values(module: nn.Module, weights: Path) -> dict[str, Tensor]:
    """Return the files' values of the parameters by name. Raises InputError if one is not on meta."""
    for name, parameter in module.named_parameters():
        if not parameter.is_meta:
            raise InputError(
                f"weights=: {name} has values, and other parameters are on meta: make the whole module there"
            )
    found = {id(tensor): values for tensor, values in find_values(module, weights)}
    return {name: found[id(parameter)] for name, parameter in module.named_parameters()}


def _fill_buffers(module: nn.Module, weights: Path, device: torch.device) -> None:
    """Give buffers on meta the files' values, whole: each rank has its own."""
    for buffer, values in find_values(module, weights):
        made = torch.empty_strided(buffer.shape, buffer.stride(), dtype=buffer.dtype, device=device)
        # Swapped, so that who holds the buffer holds its values.
        torch.utils.swap_tensors(buffer, made.copy_(values))


def _check_files(ranks: Ranks, weights: Path, values: Mapping[str, Tensor]) -> None:
    """Raise MismatchError, on all ranks, if one has files with other tensors than rank 0."""
    found = ranks.gathered({name: (tuple(each.shape), each.dtype) for name, each in values.items()})
    for rank, forms in enumerate(found):
        if forms != found[0]:
            raise MismatchError(f"weights=: ranks 0 and {rank} have different files at {weights}")


def _check_replicas(ranks: Ranks, module: nn.Module) -> None:
    """Raise MismatchError, on all ranks, if two that hold the same shares have read other values."""
    if ranks.replicas == 1:
        return
    mine = {name: checksum(local_of(each)) for name, each in module.named_parameters()}
    firsts: dict[int, tuple[int, dict[str, int]]] = {}
    for rank, (shard, sums) in enumerate(ranks.gathered((ranks.shard, mine))):
        first, known = firsts.setdefault(shard, (rank, sums))
        for name in known:
            if sums[name] != known[name]:
                raise MismatchError(f"weights=: ranks {first} and {rank} have read other values of {name}")
