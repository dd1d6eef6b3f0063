"""Shares of spread tensors: DTensors of the placement Shard(0), with replicas also Replicate(), as FSDP2 has
them.

    full   rows 0 … d0                         a weight, its gradient, its optimizer states
    share  rows [rank · c, (rank + 1) · c)     c = ⌈d0 / ranks⌉; the last ranks may have fewer rows, or none
    padded c rows on each rank                 what collectives send: shares of one size

A weight's share is made once and stays: between iterations it is the parameter. Collectives and updates work
on the very memory of the parameter, so whatever loads values into that has loaded them.

In mixed precision the share is the float32 master of a full weight in bfloat16: gathers cast it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...graphs.errors import InputError, MismatchError
from ...program.program import Value
from ...torch_support.torch_tensors import version_of
from ..storage.copies import raw
from ..storage.offloaded import give_up
from .ranks import Ranks

_CHECKED = 2**22
"""Bytes of a weight that are read at once for its checksum, which takes eight times as much memory."""


class Share(NamedTuple):
    """This rank's share of a tensor.

    padded: flat, as long as on each other rank; of a state, which is never sent, its rows.
    local: this rank's rows.
    gathered: dtype of the full tensor.
    """

    padded: Tensor
    local: Tensor
    gathered: torch.dtype


class Precision(NamedTuple):
    """Mixed precision of a weight whose shares are float32 masters.

    gathered: dtype of the full weight. scattered: dtype in which its gradient is summed up over the ranks.
    """

    gathered: torch.dtype
    scattered: torch.dtype


class Gathered(NamedTuple):
    """A full weight that an iteration has left. version: of the share that it was gathered from."""

    full: Tensor
    version: tuple[int, int]


class Holder(Protocol):
    """A plan that holds full weights between its iterations."""

    def hand_over(self) -> dict[str, Gathered]:
        """Let go of them, and return them by name."""
        ...


class Shards:
    """Shares that this rank holds of the tensors that are spread over all.

    are_spread: whether the module's parameters are shares already.
    precision: of the weights that are in mixed precision, by name.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.precision: Mapping[str, Precision] = {}
        self._padded: dict[str, Tensor] = {}
        self._let_go = False
        self._holder: Callable[[], Holder | None] = _nobody

    @property
    def are_spread(self) -> bool:
        return bool(self._padded) or self._let_go

    def let_go(self) -> None:
        """Keep no share, since a plan is to have them as tensors that it offloads."""
        self._padded.clear()
        self._let_go = True

    def take_over(self, holder: Holder) -> dict[str, Gathered]:
        """Return the full weights that the plan before has left, which no longer has them."""
        before = self._holder()
        if before is holder:
            return {}
        self._holder = weakref.ref(holder)
        return {} if before is None else before.hand_over()

    # ── sizes ───────────────────────────────────────────────────────────────────────────────────────

    def rows(self, length: int) -> int:
        """Return the rows of each rank's share, padding included, of a tensor with so many rows."""
        return -(-length // self.ranks.shards)

    def own_rows(self, length: int) -> int:
        """Return the rows of this rank's share, without padding, of a tensor with so many rows."""
        rows = self.rows(length)
        return max(0, min(rows, length - self.ranks.shard * rows))

    def padded_bytes(self, form: Value, dtype: torch.dtype | None = None) -> int:
        """Return the bytes of a tensor of this form with its padding. dtype: another one than the form's."""
        size = (dtype or form.dtype).itemsize
        return self.rows(form.shape[0]) * self.ranks.shards * _row(form.shape) * size

    def _own(self, padded: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return this rank's rows in a padded share of a tensor of this shape."""
        there = self.own_rows(shape[0])
        return padded[: there * _row(shape)].view(there, *shape[1:])

    # ── making shares ───────────────────────────────────────────────────────────────────────────────

    def spread(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        values: Mapping[str, Tensor] | None = None,
    ) -> Callable[[], None]:
        """Replace the module's parameters, and the optimizer's, by DTensors that hold this rank's share.

        values: of parameters on meta, by name; of each, this rank's rows alone are read.
        Returns a function that undoes it.
        """
        before = dict(module.named_parameters())
        made = {
            name: self._parameter(name, each, each.detach() if values is None else values[name])
            for name, each in before.items()
        }
        _replace_parameters(module, optimizer, {id(before[name]): each for name, each in made.items()})

        def undo() -> None:
            _replace_parameters(module, optimizer, {id(each): before[name] for name, each in made.items()})
            self._padded.clear()
            self._let_go = False

        return undo

    def adopt(self, module: nn.Module, precision: Mapping[str, Precision]) -> None:
        """Take over parameters that are shares already, as FSDP2 makes them: mostly with their padding."""
        self.precision = precision
        for name, weight in module.named_parameters():
            shape, local = tuple(weight.shape), local_of(weight)
            count = self.rows(shape[0]) * _row(shape)
            memory = local.untyped_storage()
            # FSDP2's memory has the padding already: it is sent as it is.
            if local.storage_offset() == 0 and memory.nbytes() == count * local.itemsize:
                self._padded[name] = local.new_empty(0).set_(memory, 0, (count,), (1,))
                continue
            self._padded[name] = padded = local.new_zeros(count)
            own = self._own(padded, shape)
            own.copy_(local)
            local.data = own  # the DTensor and its local tensor stay the same objects

    @contextmanager
    def whole(self, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Generator[None]:
        """Let a trace find parameters of their full shapes; they have no values, and take no memory."""
        named = {name: each for name, each in module.named_parameters() if isinstance(each, DTensor)}
        spread = list(named.values())
        made = [_without_values(each, self.gathered(name, each)) for name, each in named.items()]
        _replace_parameters(module, optimizer, {id(x): y for x, y in zip(spread, made, strict=True)})
        try:
            yield
        finally:
            _replace_parameters(module, optimizer, {id(y): x for x, y in zip(spread, made, strict=True)})

    def gathered(self, name: str, weight: Tensor) -> torch.dtype:
        """Return the dtype in which a weight is gathered."""
        return self.precision[name].gathered if name in self.precision else weight.dtype

    def _parameter(self, name: str, full: nn.Parameter, values: Tensor) -> nn.Parameter:
        shape = tuple(full.shape)
        count = self.rows(shape[0]) * _row(shape)
        self._padded[name] = padded = torch.zeros(count, dtype=full.dtype, device=self.ranks.device)
        local = self._own(padded, shape)
        first = self.ranks.shard * self.rows(shape[0])
        local.copy_(values[first : first + local.shape[0]])
        return nn.Parameter(self._dtensor(local, full), full.requires_grad)

    def _dtensor(self, local: Tensor, like: Tensor) -> DTensor:
        return DTensor.from_local(
            local,
            self.ranks.mesh,
            self.ranks.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def share(self, form: Value) -> Share:
        """Allocate this rank's share of a gradient of this form."""
        count = self.rows(form.shape[0]) * _row(form.shape)
        padded = torch.empty(count, dtype=form.dtype, device=form.device)
        return Share(padded, self._own(padded, form.shape), form.dtype)

    def of_weight(self, name: str, weight: Tensor) -> Share:
        """Return the share that is a parameter. Raises MismatchError if it is another tensor by now."""
        local, padded = local_of(weight), self._padded.get(name)
        # A share without rows has no address to compare.
        if padded is None or (local.numel() and local.data_ptr() != padded.data_ptr()):
            raise MismatchError(
                f"{name} was replaced after the plan was made: load into the parameter that is there "
                "(without assign=True), or make model, optimizer and plan anew"
            )
        return Share(padded, local, self.gathered(name, weight))

    # ── collectives ─────────────────────────────────────────────────────────────────────────────────

    def gather(self, *pairs: tuple[Share, Tensor]) -> None:
        """Fill the bytes of full weights, by one collective; the last may be padding, and rounding of the
        allocator.
        """
        with self.ranks.in_order():
            self.ranks.gather([(share.padded, self._whole(share, full)) for share, full in pairs])

    def _whole(self, share: Share, full: Tensor) -> Tensor:
        """Return the elements that the ranks' shares fill in the bytes of a full weight."""
        size = share.padded.numel() * self.ranks.shards * share.gathered.itemsize
        return full[:size].view(share.gathered)

    def scatter(self, *pairs: tuple[Tensor, Share]) -> None:
        """Fill shares of gradients by the averages over the ranks, by one collective. The gradients
        themselves are overwritten.
        """
        with self.ranks.in_order():
            self.ranks.scatter([(self._sent(gradient, share), share.padded) for gradient, share in pairs])

    def _sent(self, gradient: Tensor, share: Share) -> Tensor:
        """Return the elements of a gradient, with its padding, that are scattered."""
        return raw(gradient)[: share.padded.nbytes * self.ranks.shards].view(share.padded.dtype)

    def add_up(self, numbers: Tensor) -> None:
        """Add a flat tensor up over the ranks, in place."""
        with self.ranks.in_order():
            self.ranks.add_up(numbers)


def check_module(module: nn.Module, size: int) -> None:
    """Raise InputError, one line, for a module whose parameters can't be spread over so many ranks."""
    memories: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        if not parameter.dim() or not parameter.numel():
            raise InputError(
                f"shard=: {name} has the shape {list(parameter.shape)}, of which {size} ranks have no rows: "
                "make it a parameter of one dimension, or a buffer"
            )
        if not parameter.is_contiguous():
            raise InputError(
                f"shard=: {name} has strides {list(parameter.stride())}, and is spread by rows: set "
                f"its .data to .data.contiguous() first"
            )
        memory = id(parameter) if parameter.is_meta else parameter.untyped_storage().data_ptr()
        if (other := memories.setdefault(memory, name)) != name:
            raise InputError(
                f"shard=: {name} and {other} lie in one memory: use one parameter under both names, or give "
                f"{name} memory of its own, by .data.clone()"
            )


def checksums(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield per parameter its name, form, and a number that differs if its values do."""
    for name, parameter in module.named_parameters():
        yield name, (tuple(parameter.shape), parameter.dtype, checksum(parameter.detach()))


def checksum(tensor: Tensor) -> int:
    """Return a number that differs if a tensor's values do."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for number, piece in enumerate(raw(tensor).split(_CHECKED)):
        places = torch.arange(1, piece.numel() + 1, device=piece.device).add_(number * _CHECKED)
        # Weighted by their places: bytes that are swapped count too. It wraps at 2**64.
        total += places.mul_(piece).sum()
    return int(total)


def version_of_share(weight: Tensor) -> tuple[int, int]:
    """Return what changes with the values of a weight: updates, and whatever is loaded into it.

    PyTorch counts operations on the DTensor at the DTensor alone.
    """
    return version_of(weight), version_of(local_of(weight))


def _replace_parameters(
    module: nn.Module, optimizer: torch.optim.Optimizer | None, made: dict[int, nn.Parameter]
) -> None:
    """Replace parameters of the module and of the optimizer's groups. made: by the identity of the former."""
    for part in module.modules():
        # A tied parameter too, under each of its names.
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(part, name, made.get(id(parameter), parameter))
    for group in () if optimizer is None else optimizer.param_groups:
        group["params"] = [made.get(id(each), each) for each in group["params"]]


def _without_values(weight: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    made = nn.Parameter(torch.empty(0, dtype=dtype, device=weight.device), weight.requires_grad)
    form = Value(
        storage=0,
        shape=tuple(weight.shape),
        strides=weight.stride(),
        offset=0,
        dtype=dtype,
        device=weight.device,
    )
    give_up(made, form, _refuse_values)
    return made


def _refuse_values() -> NoReturn:
    raise MismatchError("shard=: the values of a weight are asked for while a plan is made: they are spread")


def _nobody() -> None:
    return None


def local_of(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a DTensor."""
    if not isinstance(tensor, DTensor):
        raise MismatchError("a spread tensor was replaced by an ordinary one: plan anew")
    with torch.no_grad():
        return tensor.to_local()


def _row(shape: tuple[int, ...]) -> int:
    """Return the elements of one row."""
    count = 1
    for length in shape[1:]:
        count *= length
    return count
