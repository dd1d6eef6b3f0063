"""Which tensors of an iteration share memory: as they did when it was traced, or it is refused.

A plan computes with every weight, buffer, optimizer state and constant as with a tensor in its own memory,
but for those that shared it in the trace. What an iteration changes must therefore overlap with nothing else
than it did then: else a change of one would be another's too, at a place in the schedule that nobody chose.
Tensors that nothing changes may share memory as they like.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate

from torch import Tensor

from ...devices.storage.offloaded import Offloaded
from ...graphs.errors import MismatchError
from ...program.program import Program
from ...program.state_blocks import state_and_rows
from ...torch_support.torch_fakes import no_torch_function

_ADDRESS = Tensor.data_ptr

Extent = tuple[int, int, int]
"""A memory, and a tensor's first and last byte in it (the last excluded)."""

_NOWHERE: Extent = (0, 0, 0)

Group = frozenset[tuple[int, int]]
"""Tensors that overlap, one with the next, each with its distance from the first in bytes."""


class Overlaps:
    """The check which residents of a program overlap in memory.

    It takes some tens of nanoseconds per tensor as long as all are where they were.
    """

    def __init__(self, program: Program, changed: Collection[int], own: Collection[tuple[str, str]]) -> None:
        """Read from the program which residents overlap.

        changed: the storages that iterations change.
        own: the states that are their weights themselves, by parameter and name.
        """
        lasting = (*program.parameters.items(), *program.buffers.items(), *program.states.items())
        named = [*lasting, *((name, value) for name, value in program.inputs.items())]
        named += [("a tensor in an attribute", value) for value in program.constants]
        first, end = len(lasting), len(lasting) + len(program.inputs)
        # The first block of rows stands for its state, of which the tensor is one.
        places = [
            place
            for place, (name, _value) in enumerate(named)
            if name not in own and (isinstance(name, str) or _begins(name[1]))
        ]
        self._places = [place for place in places if not first <= place < end]
        self._inputs = dict(zip(program.inputs, range(first, end), strict=True))
        held = [named[place] for place in self._places]
        self._names = [
            name if isinstance(name, str) else f"{state_and_rows(name[1])[0]} of {name[0]}"
            for name, _value in held
        ]
        values = [program.values[value] for _name, value in held]
        self._changed = {place for place, value in enumerate(values) if value.storage in changed}
        starts = (value.offset * value.dtype.itemsize for value in values)
        extents = [(v.storage, start, v.end) for v, start in zip(values, starts, strict=True)]
        self._extents = extents
        self._addresses: list[int] | None = None
        self._ends: list[int] = []
        self._firsts: list[tuple[int, str]] = []

    def check(self, residents: Sequence[Tensor]) -> None:
        """Raise MismatchError if what an iteration changes overlaps otherwise than in the trace.

        residents: in the program's order.
        """
        if not self._changed:
            return
        lasting = [residents[place] for place in self._places]
        with no_torch_function():  # an offloaded tensor stays where it is, in memory of its own
            addresses = _addresses(lasting)
            if addresses != self._addresses:
                self._compare(lasting, addresses)
                self._addresses = addresses
            for name, place in self._inputs.items():
                self._check_input(name, residents[place])

    def _compare(self, tensors: Sequence[Tensor], addresses: Sequence[int]) -> None:
        """Compare the groups of tensors that overlap with the planned ones, and note where they are."""
        self._addresses = None
        extents = list(map(_extent, tensors, addresses))
        # One that is offloaded shares nothing with those that are here, until it is back at another address.
        planned = [
            there if address else _NOWHERE for there, address in zip(self._extents, addresses, strict=True)
        ]
        found, expected = _groups(extents, self._changed), _groups(planned, self._changed)
        if found != expected:
            self._refuse(found, expected)
        there = sorted((*extents[place][1:], self._names[place]) for place in self._changed)
        self._ends = list(accumulate((end for _start, end, _name in there), max))
        self._firsts = [(start, name) for start, _end, name in there]

    def _refuse(self, found: frozenset[Group], planned: frozenset[Group]) -> None:
        more, less = found - planned, planned - found
        group = min(more or less, key=sorted)
        names = [self._names[place] for place, _distance in sorted(group)][:2]
        now = "share memory otherwise than" if more else "do not share memory as"
        raise MismatchError(
            f"{' and '.join(names)} {now} when the plan was made, and the iteration changes it: give each "
            "memory of its own (tensor.clone()), or, if both are weights, plan the module anew"
        )

    def _check_input(self, name: str, tensor: Tensor) -> None:
        (start,) = _addresses([tensor])
        _memory, start, end = _extent(tensor, start)
        place = bisect_right(self._ends, start)  # the first that ends after the input's start
        if start < end and place < len(self._firsts) and self._firsts[place][0] < end:
            raise MismatchError(
                f"input {name} shares memory with {self._firsts[place][1]}, which the iteration changes: "
                "give its clone()"
            )


def _begins(state: str) -> bool:
    """Tell whether a program's state is a whole one, or its first block of rows."""
    _name, rows = state_and_rows(state)
    return rows is None or rows.start == 0


def _groups(extents: Sequence[Extent], changed: Collection[int]) -> frozenset[Group]:
    """Return the groups of several tensors that overlap, of which one is among the changed ones."""
    found: list[list[int]] = []
    memory, reached = None, 0
    for place in sorted(range(len(extents)), key=extents.__getitem__):
        where, start, end = extents[place]
        if start == end:  # it is empty, or nobody has its address
            continue
        if memory != where or start >= reached:
            found.append([])
            memory, reached = where, end
        found[-1].append(place)
        reached = max(reached, end)
    several = (group for group in found if len(group) > 1 and not set(group).isdisjoint(changed))
    return frozenset(
        frozenset((place, extents[place][1] - extents[group[0]][1]) for place in group) for group in several
    )


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    """Return where tensors begin, 0 for those that are offloaded."""
    try:
        return list(map(_ADDRESS, tensors))
    except RuntimeError:  # of one that is offloaded
        return [0 if isinstance(each, Offloaded) else _ADDRESS(each) for each in tensors]


def _extent(tensor: Tensor, start: int) -> Extent:
    """Return the memory of a tensor that starts there; 0 stands for none."""
    if start == 0 or tensor.numel() == 0:
        return _NOWHERE
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return 0, start, start + (last + 1) * tensor.itemsize
