"""The numbers that optimizers keep for each parameter: how often it was updated, and running products.

A plan takes them as settings, one number for all parameters of a group: they must be equal. They are read
when an iteration begins, and written when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices.device.device import Device, StreamDevice
from ..graphs.errors import MismatchError
from ..torch_support.torch_optimizers import kernel_for_lists
from .catalogue import DescribedGroup, described_groups

COUNT = "step"
"""Name under which some optimizers keep, with a parameter's states, how often it was updated."""

Rows = Sequence[dict[str, Any]]
"""What an optimizer holds for the parameters of a group, each."""


class Counts:
    """The numbers of some parameters' rows."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._ints: list[dict[str, Any]] = []
        self._products: list[tuple[list[Tensor], float, float]] = []
        self._steps = 0.0
        self._advanced = False

    def read(self, groups: Iterable[tuple[DescribedGroup, Rows]]) -> tuple[set[float], list[float]]:
        """Read the numbers of the groups' rows, which have all of them.

        Returns the counts that there are, and the groups' numbers, running products as they are after this
        step. Raises MismatchError.
        """
        self._tensors, self._ints, self._products, self._advanced = [], [], [], False
        numbers, products = list[float](), list[tuple[DescribedGroup, dict[str, list[Tensor]]]]()
        for each, inside in groups:
            if each.described.counts and each.described.counts_in_int:
                self._ints += inside
            elif each.described.counts:
                self._tensors += [row[COUNT] for row in inside]
            products.append((each, {name: [row[name] for row in inside] for name in each.described.products}))
        _check_counts(self._tensors, self._ints)
        counts = {*_numbers(self._tensors), *(float(row[COUNT]) for row in self._ints)}
        self._steps = max(counts, default=0.0)
        for each, tensors in products:
            after = {name: self._product(each, name, found) for name, found in tensors.items()}
            numbers += each.described.values({**each.group, **after})
        return counts, numbers

    def advance(self) -> None:
        """Count a step."""
        self._advanced = True  # before the additions: if one fails halfway, `undo` knows the counts
        for row in self._ints:
            row[COUNT] += 1
        _add(self._tensors, 1)
        for tensors, _before, after in self._products:
            _fill(tensors, after)

    def undo(self) -> None:
        """Make the numbers what they were when they were read."""
        if not self._advanced:
            return
        self._advanced = False
        for row in self._ints:
            row[COUNT] = int(self._steps)
        _fill(self._tensors, self._steps)
        for tensors, before, _after in self._products:
            _fill(tensors, before)

    def _product(self, of: DescribedGroup, name: str, tensors: Sequence[Tensor]) -> float:
        """Return the running product of the group after this step."""
        if not tensors:
            return 1.0
        before = set(_numbers(tensors))
        if len(before) > 1:
            raise MismatchError(
                f"{name} differs between parameters of a group of the optimizer; planned updates take one "
                "for all: make a new optimizer, or give each such parameter a group of its own"
            )
        number, factor = before.pop(), of.described.products[name](of.group, self._steps + 1)
        # In the dtype of the tensor, as the optimizer's own `mul_` rounds.
        after = float(torch.tensor(number, dtype=tensors[0].dtype, device="cpu").mul_(factor))
        self._products.append((list(tensors), number, after))
        return after


def new_numbers(of: DescribedGroup, device: torch.device, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that a parameter's row lacks, as its optimizer makes them before the first update.

    device: of the weight. No memory is taken for what is there: a plan's device may be full.
    """
    made: dict[str, Any] = {}
    products = [name for name in of.described.products if row.get(name) is None]
    # As torch.optim chooses the dtype.
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    if not of.described.counts or row.get(COUNT) is not None:
        pass
    elif of.described.counts_in_int:
        made[COUNT] = 0
    else:
        # Fused kernels need the count on the weight's device.
        made[COUNT] = torch.zeros((), dtype=dtype, device="cpu")
        if of.group.get("fused"):
            made[COUNT] = torch.zeros((), dtype=torch.float32, device=device)
    return made | {name: torch.ones((), dtype=dtype, device="cpu") for name in products}


def count_bytes(optimizer: torch.optim.Optimizer, device: Device) -> int:
    """Return the bytes that the optimizer keeps on a device in addition to the states that the plan knows.

    These are tables that states share and, on a device that allocates blocks, a count for each weight that
    PyTorch's fused kernels update.
    """
    groups = [each for each in described_groups(optimizer) if each.described.counts]
    tables = {
        id(table): table
        for described, group, first in groups
        for weight in group["params"]
        if described.tables
        for state, table_on in described.tables.values()
        if state in described.rule(group, first, weight).states
        for table in [table_on(device.torch)]
    }
    size = sum(device.rounded(table.nbytes) for table in tables.values())
    if isinstance(device, StreamDevice):
        size += (
            sum(len(each.group["params"]) for each in groups if each.group.get("fused")) * device.block_bytes
        )
    return size


def _check_counts(counts: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise MismatchError unless each weight has a step count of its own: plans count each one once."""
    if not all(isinstance(count, Tensor) for count in counts):
        raise MismatchError("a step count of the optimizer is no tensor: give torch.tensor(float(step))")
    if not all(type(row[COUNT]) is int for row in rows):
        raise MismatchError("a step count of the optimizer is no int: give int(step)")
    if len(set(map(Tensor.data_ptr, counts))) < len(counts):
        raise MismatchError(
            "two parameters of the optimizer share one step count, which planned updates would count twice: "
            "give each its clone()"
        )


def _numbers(counts: Sequence[Tensor]) -> list[float]:
    """Return the counts as numbers: on the CPU without any memory, elsewhere with one wait per device."""
    here, others = _by_place(counts)
    kinds = {(count.device, count.dtype) for count in others}
    groups = ([count for count in others if (count.device, count.dtype) == kind] for kind in kinds)
    read = [number for group in groups for number in torch.stack(group).tolist()]
    return [float(number) for number in (*(count.item() for count in here), *read)]


def _add(counts: Sequence[Tensor], number: int) -> None:
    """Add a number to the counts in place, on the CPU without any memory: `add_` takes 12 bytes there."""
    here, others = _by_place(counts)
    for count in here:
        count.fill_(count.item() + number)
    if others:
        kernel_for_lists("add_")(others, number)


def _fill(tensors: Sequence[Tensor], number: float) -> None:
    for tensor in tensors:
        tensor.fill_(number)


def _by_place(counts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the counts that are on the CPU, where a plan's device may be full around iterations, and the
    others.
    """
    here = [count for count in counts if count.is_cpu]
    others = [count for count in counts if not count.is_cpu] if len(here) < len(counts) else []
    return here, others
