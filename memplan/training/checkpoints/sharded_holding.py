"""Parts of a checkpoint's tensors, which several ranks hold together.

    save   all ranks give their parts of one tensor after the other; rank 0 writes each, whole
    load   all ranks map the files, verify some of them each, and copy their own parts

Rank 0 needs host memory for one whole tensor, the others for their part of it. Parts are rows, the shares of
sharded training, or what the module's own mesh says (placed_holding.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...devices.sharded.local_tensors import local_state, local_tensor
from ...devices.sharded.ranks import Ranks
from ...devices.sharded.shards import Shards
from ...devices.storage.host_access import at_home_value, replace_at_home
from ...graphs.errors import InputError, MismatchError
from ...torch_support.torch_trees import tree_leaves
from .holding import Holding
from .random_numbers import random_numbers

Result = TypeVar("Result")


class JointHolding(Holding):
    """The parts that one of the ranks holds: DTensors. All ranks make the same calls together."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.rank, self.size = self._ranks.rank, self._ranks.size
        self._unread = 0

    def together(self, make: Callable[[], Result]) -> Result:
        return self._ranks.together(make, "has failed")

    def check_equal(self, what: str, mine: object) -> None:
        for rank, other in enumerate(found := self._ranks.gathered(mine)):
            if other != found[0]:
                raise MismatchError(f"ranks 0 and {rank} differ in {what}: they must call this together")

    def check_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        forms = [(name, tuple(each.shape), each.dtype) for name, each in tensors.items()]
        self.check_equal("the tensors that they save", forms)

    def check_extra(self, extra: Mapping[str, Any]) -> None:
        for name, part in extra.items():
            if any(isinstance(leaf, DTensor) for leaf in tree_leaves(part)):
                raise InputError(
                    f"extra {name!r} has a DTensor, of which each rank has a share: give its "
                    "full_tensor(), or save it by torch.distributed.checkpoint"
                )

    def random_numbers(self) -> list[dict[str, Any]]:
        return self._ranks.gathered(random_numbers())

    @contextmanager
    def reading(self, tensors: Sequence[Tensor]) -> Generator[None]:
        self._unread = sum(isinstance(tensor, DTensor) for tensor in tensors)
        try:
            yield
        except BaseException:
            if self._unread and not self._ranks.lost:  # the others wait for the next tensor
                self._ranks.from_first(False)
            raise

    def read(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return super().read(tensor)
        with self._ranks.in_order():
            # The others wait for this word before each tensor: if rank 0 fails, they get False instead.
            self._ranks.from_first(True)
            self._unread -= 1
            return self._collected(tensor)

    def give(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if isinstance(tensor, DTensor):
                with self._ranks.in_order():
                    if not self._ranks.from_first(None):
                        return
                    self._give(tensor)

    def replace(self, tensor: Tensor, values: Tensor) -> None:
        if isinstance(tensor, DTensor):
            replace_at_home(local_tensor(tensor), self._own(tensor, values))
        else:
            super().replace(tensor, values)

    def new_state(self, parameter: Tensor, values: Tensor, *, on_cpu: bool) -> Tensor:
        if values.shape != parameter.shape or not isinstance(parameter, DTensor):
            return super().new_state(parameter, values, on_cpu=on_cpu)
        made = local_state(parameter, values.dtype)
        self.replace(made, values)
        return made

    @abstractmethod
    def _own(self, tensor: DTensor, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor's values, contiguous. whole: all of them."""

    @abstractmethod
    def _collected(self, tensor: DTensor) -> Tensor:
        """Return a whole tensor, on rank 0."""

    @abstractmethod
    def _give(self, tensor: DTensor) -> None:
        """Give this rank's part of a tensor to rank 0."""


class ShardedHolding(JointHolding):
    """The shares that one of the ranks of sharded training holds."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.ranks)
        self._shards = shards

    def _own(self, tensor: DTensor, whole: Tensor) -> Tensor:
        length = tensor.shape[0]
        first = self._ranks.shard * self._shards.rows(length)
        return whole[first : first + self._shards.own_rows(length)]

    def _collected(self, tensor: DTensor) -> Tensor:
        rows = self._shards.rows(tensor.shape[0])
        # With the padding of the last shares, which is cut off below.
        whole = torch.empty(self._ranks.shards * rows, *tensor.shape[1:], dtype=tensor.dtype, device="cpu")
        self._ranks.to_first(self._sent(tensor), whole.view(-1).view(torch.uint8))
        return whole[: tensor.shape[0]]

    def _give(self, tensor: DTensor) -> None:
        self._ranks.to_first(self._sent(tensor))

    def _sent(self, tensor: DTensor) -> Tensor:
        """Return the bytes of this rank's rows, in host memory, with as many rows as on each other rank."""
        local = at_home_value(local_tensor(tensor))
        sent = torch.zeros(
            self._shards.rows(tensor.shape[0]), *tensor.shape[1:], dtype=tensor.dtype, device="cpu"
        )
        sent[: local.shape[0]].copy_(local)
        return sent.view(-1).view(torch.uint8)
