"""Processes that train one model together, each with its own batches: data parallel.

They do what DistributedDataParallel does: the ranks begin with the same weights, the gradients of all are
averaged, so the weights stay the same. With planned updates the averages are operations of the plan
(updates/averages.py). They communicate with the other ranks in training iterations only, within `together`;
when an iteration is measured or compared they copy. So a rank may plan for shapes that the others do not see.
Without planned updates, gradients are averaged when they are added to `.grad`, as there: what `no_sync` has
left in it too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Any
from weakref import ReferenceType, WeakSet, ref

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..devices.device.choice import device_of
from ..devices.sharded.communicator import unowned
from ..devices.sharded.ranks import OnAllRanksError
from ..devices.sharded.signs import Signs, is_of_network, keep, line_of
from ..devices.sharded.store import SharedStore
from ..graphs.errors import InputError, MemplanError, MismatchError
from ..torch_support.torch_collectives import name_of_group
from ..torch_support.torch_processes import has_communication_hooks, timeout_of

_SIZES = (2**10, 2**22)
_ROUNDS = 5

_numbers: dict[str, count[int]] = {}
"""Per group, numbers of its objects of this module: equal on all ranks, which make theirs together."""

_made = WeakSet["Processes"]()


class Around(nn.Module):
    """A function of a module and its inputs, as a module.

    module: for a DistributedDataParallel the function gets the module inside.
    others: further modules that the function uses.
    code: the user's function in it, what whose code reads a trace follows.
    owner: a weak reference to the object whose method the function is, and whose lists, dicts and numbers
        it may change; None if there is none.
    objects: what else it uses, by name; tensors that these hold are constants, as those of a module are.
    """

    def __init__(
        self,
        module: nn.Module,
        function: Callable[[nn.Module, dict[str, Any]], Any],
        others: Mapping[str, nn.Module],
        code: Callable[..., Any],
        owner: ReferenceType[Any] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.owner, self.code = owner, code
        self.outer = ref(module)  # no part of this one
        self.module = module.module if type(module) is DistributedDataParallel else module
        self.function, self.others = function, nn.ModuleDict(others)
        self.objects = dict(objects or {})

    def forward(self, **inputs: Any) -> Any:
        return self.function(self.module, inputs)

    __call__ = forward  # past the user's hooks for all modules: this is none of the user's


def parallel_of(module: Any) -> DistributedDataParallel | None:
    """Return the module if it is a DistributedDataParallel. Raises InputError for one that casts."""
    if type(module) is not DistributedDataParallel:
        return None
    if module.mixed_precision is not None:
        raise InputError("DistributedDataParallel's mixed_precision is not in a plan: use autocast")
    return module


def inside(module: Any) -> tuple[Any, Processes | None]:
    """Return the module in a DistributedDataParallel with its processes; any other as it is.

    Raises InputError.
    """
    parallel = parallel_of(module.outer() if isinstance(module, Around) else module)
    if parallel is None:
        return module, None
    if has_communication_hooks(parallel):
        raise InputError("DistributedDataParallel has a communication hook, which a plan does not run")
    return parallel.module if parallel is module else module, Processes(parallel)


def end_processes(error: BaseException | None) -> None:
    """End what this program has with others. error: with which it ends, for the other ranks to name."""
    for each in list(_made):
        if error is not None:
            each.leave(error)
        each.await_readers()


class Processes:
    """The process group of a DistributedDataParallel module.

    size: number of processes.
    rank: which of them this is.
    rounds: number of iterations in which it has communicated with the others: between any two of them equal
        on all.

    All processes must create theirs together.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        self._parallel = ref(module)
        self._group: dist.ProcessGroup = module.process_group  # pyright: ignore[reportAttributeAccessIssue]
        self.size, self.rank = dist.get_world_size(self._group), dist.get_rank(self._group)
        self._device = device_of(next(module.parameters()).device)
        self._first = dist.get_global_rank(self._group, 0)  # broadcast takes no rank of the group
        self._buffers = bool(module.broadcast_buffers)
        self._together = False
        name = name_of_group(self._group)
        store = SharedStore(f"memplan/averages/{name}/{next(_numbers.setdefault(name, count()))}")
        self._signs = Signs(store, self.rank, self.size, timeout_of(self._group, self._device.torch))
        self.lost, self.under_way, self._came = "", False, perf_counter()
        self.rounds = 0
        _made.add(self)
        self._averaged: list[tuple[str, Sequence[tuple[int, ...]]]] | None = None
        self._costs = self._measured()

    def average_into(self, flat: Tensor, averages: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Fill `averages`, which lie in `flat`, with averages as DistributedDataParallel makes them.

        They are sums of each rank's share of the gradients. Any one thread at a time may call it.
        """
        for averaged, gradient in zip(averages, gradients, strict=True):
            if self._together:
                # Multiplied before the sum, as in PyTorch: a division of the sum rounds otherwise.
                torch.mul(gradient, 1 / self.size, out=averaged)
            else:
                averaged.copy_(gradient)
        if self._together and flat.numel():
            # Gloo's thread lets go of it some time after the sum, when a plan has freed it.
            sent = unowned(flat) if flat.is_cpu else flat
            self._run(dist.all_reduce, sent, held=flat)

    def average_all(self, gradients: Iterable[Tensor]) -> None:
        """Average the gradients in place, in this order, which is that of all ranks."""
        try:
            for gradient in gradients:
                gradient.mul_(1 / self.size)
                self._run(dist.all_reduce, gradient)
            self.rounds += 1
        except BaseException as error:
            self.leave(error)
            raise
        finally:
            self.under_way = False

    def numbers(self, *mine: float) -> list[list[float]]:
        """Return the numbers that each rank has given, as many as each other.

        All ranks call it between the same two of their `rounds`.
        """
        self._signs.go_on()
        rows = torch.zeros(self.size * len(mine), device=self._device.torch)
        rows.view(self.size, -1)[self.rank] = torch.tensor(mine, device=rows.device)
        try:
            self._run(dist.all_reduce, unowned(rows) if rows.is_cpu else rows, held=rows)
        except BaseException as error:
            self.leave(error)
            raise
        finally:
            self.under_way = False
        return rows.view(self.size, -1).tolist()

    @property
    def syncs(self) -> bool:
        """Tell whether gradients are to be averaged now: not within DistributedDataParallel's `no_sync`."""
        parallel = self._parallel()
        return parallel is None or bool(parallel.require_backward_grad_sync)

    def check_syncs(self) -> None:
        """Check that DistributedDataParallel averages now; call it before an iteration that updates
        weights.

        Raises MismatchError.
        """
        if not self.syncs:
            raise MismatchError(
                "the step averages gradients and updates the weights with this batch: call it outside of "
                "no_sync, or give optimize the number of batches of an update, gradient_accumulation_steps=N"
            )

    @contextmanager
    def together(self, buffers: Iterable[Tensor]) -> Generator[None]:
        """Surround an iteration that all ranks run together.

        buffers: those that it changes; all begin with the first rank's, if DistributedDataParallel was asked
            to do so.
        """
        if self.lost:
            raise MemplanError(self.lost)
        self._signs.go_on()
        try:
            if self._buffers:
                for buffer in buffers:
                    self._run(dist.broadcast, buffer, self._first)
            self._together = True
            yield
            self.rounds += self.under_way
        except OnAllRanksError:
            self.rounds += self.under_way
            raise
        except BaseException as error:
            if self.under_way:
                self.leave(error)
            else:  # the iteration may be repeated; if the program ends instead, the others know why
                self._signs.fail(error)
            raise
        finally:
            self._together = self.under_way = False

    def _run(
        self,
        collective: Callable[..., Any],
        tensor: Tensor,
        *arguments: int,
        held: Tensor | None = None,
    ) -> None:
        """Run a collective. Raises MemplanError, with the rank that is lost, if one is.

        held: what owns the tensor's memory, by default the tensor.
        """
        if self.lost:
            raise MemplanError(self.lost)
        self.under_way, pause = True, perf_counter() - self._came
        work = collective(tensor, *arguments, group=self._group, async_op=True)
        try:
            if tensor.is_cpu:
                self._signs.wait_or_search(work)
            else:
                work.wait()  # with NCCL the stream waits, and not this thread
        except RuntimeError as error:
            if not is_of_network(error):
                raise
            keep(work, tensor, held)  # gloo goes on with it
            self._signs.call_to_search()
            self.lost = f"{self._signs.find_lost(error, pause)}; start all ranks anew, from a checkpoint"
            raise MemplanError(self.lost) from None
        self._came = perf_counter()

    def leave(self, error: BaseException | None) -> None:
        """Leave for good, so that no rank waits for this one. error: what this rank has raised."""
        if not self.lost:
            why = error or RuntimeError("the program has ended")
            self.lost = f"this rank has failed: {line_of(why)}; start all ranks anew, from a checkpoint"
            self._signs.fail(why)
            self._signs.call_to_search()

    @contextmanager
    def planning(self, equal: Mapping[str, tuple[object, str]]) -> Generator[None]:
        """Surround the first plan, which all ranks make at once.

        If one fails, or has gradients for other parameters or another value of an option, all do: raises
        MemplanError.

        equal: by the names of options that are equal on all ranks, their values here, and what all must do.
        """
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            # After a failure too: the other ranks wait for this word.
            values = {name: value for name, (value, _why) in equal.items()}
            found = self._gathered(
                (failed and (str(failed) or type(failed).__name__), self._averaged, values)
            )
            if failed is None:
                self._check(found, equal)

    def await_readers(self) -> None:
        """Let the others read why this rank has failed; see Signs."""
        self._signs.await_readers()

    def _check(
        self,
        found: list[tuple[str | None, Any, dict[str, object]]],
        equal: Mapping[str, tuple[object, str]],
    ) -> None:
        for rank, (text, averaged, _values) in enumerate(found):
            if text is not None:
                raise MemplanError(f"rank {rank} of {self.size} has no plan: {text}")
            if averaged != self._averaged:
                raise MismatchError(
                    f"rank {rank} has gradients for other parameters: all ranks must train the same ones"
                )
        for rank, (_text, _averaged, values) in enumerate(found):
            for name, (own, why) in equal.items():
                if (other := values.get(name)) != own:
                    raise MismatchError(
                        f"rank {rank} has {name}={other}, this one {own}: all ranks must {why}"
                    )

    def check(self, gradients: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
        """Check that a plan averages, by name and shapes, what the first one does. Raises MismatchError."""
        named = list(gradients.items())
        if self._averaged is None:
            self._averaged = named
        if self._averaged != named:
            raise MismatchError(
                "other parameters have gradients with this batch than in the first plan: the ranks would "
                "wait for each other for ever"
            )

    def seconds(self, size: int) -> float:
        """Return the time to average `size` bytes, in seconds, by a line through two measured sizes."""
        start, rate = self._costs
        return start + rate * size

    def _measured(self) -> tuple[float, float]:
        """Measure the constant time of an average, in seconds, and its seconds per byte."""
        small, large = (self._timed(torch.zeros(size // 4, device="cpu")) for size in _SIZES)  # of 4 bytes
        rate = max(0.0, (large - small) / (_SIZES[1] - _SIZES[0]))
        return max(0.0, small - rate * _SIZES[0]), rate

    def _timed(self, tensor: Tensor) -> float:
        """Return the least seconds of some rounds, on the device that computes."""
        tensor, seconds = tensor.to(self._device.torch), list[float]()
        for _ in range(_ROUNDS):
            start = perf_counter()
            # Zeros stay zeros, however often they are added up.
            dist.all_reduce(tensor, group=self._group)
            self._device.synchronize()
            seconds.append(perf_counter() - start)
        # Whatever else the machine does only adds to a round.
        return min(seconds)

    def _gathered(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self._group)
        return found
