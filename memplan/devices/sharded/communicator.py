"""Collectives of tensors, among some ranks in a process group of their own.

Gloo's own collectives copy what they are given, and its threads hold it some time after they have ended.
These take no memory beyond what they are of, and hold nothing when they return.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ...torch_support.torch_collectives import name_of_group, new_group
from ...torch_support.torch_processes import coalesced

Reported = Callable[[], AbstractContextManager[None]]
"""Makes a context for a collective, in which its failure becomes one line."""


class Communicator:
    """Ranks that run collectives of tensors together.

    members: their numbers in the default group, growing. size: how many. place: this one's among them.
    group: their process group.
    """

    def __init__(self, members: list[int], backend: str, timeout: timedelta, reported: Reported) -> None:
        """Create the group; all members call it together."""
        self.members, self.size, self.place = members, len(members), members.index(dist.get_rank())
        self._group: dist.ProcessGroup | None = new_group(members, backend, timeout)
        self._backend, self._reported = backend, reported

    @property
    def on_gloo(self) -> bool:
        return self._backend == "gloo"

    @property
    def group(self) -> dist.ProcessGroup:
        return opened(self._group)

    def end(self) -> dist.ProcessGroup | None:
        """Let go of the group, and return it: no collective begins in it any more."""
        group, self._group = self._group, None
        return group

    def gather(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill full tensors with all shares, in their order and cast to their dtypes.

        pairs: this rank's share and the full tensor, both flat. Several are one collective.
        """
        with self._reported():
            if self.on_gloo:
                for share, full in pairs:
                    full.chunk(self.size)[self.place].copy_(share)
                fulls = [full for _share, full in pairs]
                _wait(self._exchanged(fulls) if len(fulls) > 1 else self._filled(fulls[0]))
                return
            with self._as_one(len(pairs)):
                for share, full in pairs:
                    # NCCL gathers in place: the cast takes no memory.
                    cast = share.dtype != full.dtype
                    sent = full.chunk(self.size)[self.place].copy_(share) if cast else share
                    # As bytes, since coalesced tensors are of one dtype.
                    _all_gather(full.view(torch.uint8), sent.view(torch.uint8), group=self.group)

    def scatter(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill shares with this rank's part of the averages over the ranks. Gradients are overwritten.

        pairs: the gradient and this rank's share, both flat. Several are one collective.
        """
        with self._reported():
            if not self.on_gloo:
                for _dtype, same in groupby(pairs, lambda pair: pair[1].dtype):
                    of_one_dtype = list(same)
                    with self._as_one(len(of_one_dtype)):
                        for gradient, share in of_one_dtype:
                            _reduce_scatter(share, gradient, op=dist.ReduceOp.AVG, group=self.group)
                return
            # Gloo's reduce-scatter is an all-reduce of a copy, and so is a coalesced all-reduce.
            self._sum_up([gradient for gradient, _share in pairs])
            for gradient, share in pairs:
                share.copy_(gradient.chunk(self.size)[self.place])
                share.div_(self.size)  # gloo has no average

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Average flat tensors, in place; several are one collective."""
        with self._reported():
            if not self.on_gloo:
                for _dtype, same in groupby(tensors, lambda tensor: tensor.dtype):
                    of_one_dtype = list(same)
                    with self._as_one(len(of_one_dtype)):
                        for tensor in of_one_dtype:
                            dist.all_reduce(tensor, dist.ReduceOp.AVG, group=self.group)
                return
            self._sum_up(tensors)
            for tensor in tensors:
                tensor.div_(self.size)

    def add_up(self, numbers: Tensor, by: Any = dist.ReduceOp.SUM) -> None:
        """Add a flat tensor up, in place. by: another reduction than the sum."""
        with self._reported():
            dist.all_reduce(unowned(numbers) if self.on_gloo else numbers, by, group=self.group)

    def reduce_scatter(self, sent: Tensor, received: Tensor, by: Any) -> None:
        """Fill a flat tensor with this rank's part of the sums of others, not on gloo. by: the reduction."""
        with self._reported():
            _reduce_scatter(received, sent, op=by, group=self.group)

    @contextmanager
    def running(self) -> Generator[str]:
        """Surround a collective of PyTorch's own operators, to run in the group of this name."""
        with self._reported():
            yield name_of_group(self.group)

    def _filled(self, full: Tensor) -> Iterator[Any]:
        """Begin to fill a full tensor, of which this rank's part is there, on gloo: one broadcast a rank.

        Gloo's all-gather would take as much memory once more.
        """
        # As bytes: nothing is added up, so gloo need not know the dtype.
        for rank, part in enumerate(unowned(full.view(torch.uint8)).chunk(self.size)):
            yield dist.broadcast(part, group_src=rank, group=self.group, async_op=True)

    def _exchanged(self, fulls: Sequence[Tensor]) -> Iterator[Any]:
        """Likewise for several: messages between all ranks at once, each under its tensor's number.

        Collectives take gloo's two threads one after the other; a coalesced one copies all tensors twice.
        """
        for number, full in enumerate(fulls):
            parts = unowned(full.view(torch.uint8)).chunk(self.size)
            for ahead in range(1, self.size):
                # Each rank sends to one and receives from one.
                source, target = (self.place - ahead) % self.size, (self.place + ahead) % self.size
                yield dist.irecv(parts[source], group=self.group, tag=number, group_src=source)
                yield dist.isend(parts[self.place], group=self.group, tag=number, group_dst=target)

    def _sum_up(self, tensors: Sequence[Tensor]) -> None:
        """Add flat tensors up by gloo, in place."""
        _wait(dist.all_reduce(unowned(each), group=self.group, async_op=True) for each in tensors)

    def _as_one(self, count: int) -> AbstractContextManager[Any]:
        """Return a context whose collectives, so many of one kind, are one launch of NCCL's."""
        return nullcontext() if count == 1 else coalesced(self.group)


def opened(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return a group. Raises RuntimeError if it has ended: PyTorch takes None for the user's default group,
    in which a thread's collective would meet the user's.
    """
    if group is None:
        raise RuntimeError("the process group has ended")
    return group


def unowned(tensor: Tensor) -> Tensor:
    """Return a flat tensor in the same memory that does not keep it alive.

    Gloo's thread lets go of its tensors some time after a collective has ended. A plan reuses
    that memory when a collective has ended; until then the caller holds it.
    """
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)


def _wait(works: Iterable[Any]) -> None:
    """Wait for collectives or messages, all of which have begun before the first is waited for.

    A handle keeps what it is of until it is dropped.
    """
    begun = deque(works)
    while begun:
        begun.popleft().wait()


def _named(*names: str) -> Callable[..., Any]:
    """Return the collective that has the first of these names here."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


# PyTorch 2.13 has renamed both.
_all_gather = _named("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
