"""A group's calls as one function of the values that it reads, and its text."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...devices.measuring.synthetic_inputs import substitute
from ...program.call_text import call_text
from ...program.names import short_name
from ...program.program import Call, Operation, Program, Ref, refs, values_read
from .groups import Group
from .recomputed_norms import RECOMPUTED, STATISTICS, recomputed_call

Way = Callable[[Call, Mapping[int, Tensor]], Sequence[Any]]
"""Makes a call with these values: its results."""


@dataclass(frozen=True, eq=False)
class Members:
    """The calls of a group.

    inputs, outputs: values, in order.
    operations: those folded in first.
    folded: positions of those folded in.
    """

    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operations: Sequence[Operation]
    folded: frozenset[int]
    """Places of those folded in."""

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the calls one by one and return the outputs."""
        return self.run(tensors, called)

    def run(self, tensors: Sequence[Tensor], way: Way) -> list[Tensor]:
        """Compute the outputs from the input tensors.

        way: the function that runs one call.
        """
        known = dict(zip(self.inputs, tensors, strict=True))
        for place, operation in enumerate(self.operations):
            call = operation.call
            if place in self.folded and call.target in RECOMPUTED:
                self._again(call, known, way)
                continue
            results = self._run(call, known, way)
            known |= {v: r for v, r in zip(call.outputs, results, strict=True) if v is not None}
        return [known[value] for value in self.outputs]

    def uncompiled(self) -> Members:
        """Return the members without what is folded in, whose results they read instead."""
        order = [op for place, op in enumerate(self.operations) if place not in self.folded]
        made = {x for operation in order for x in operation.writes}
        read = dict.fromkeys(v for operation in order for v in values_read(operation.call))
        inputs = tuple(v for v in read if self.program.values[v].storage not in made)
        return Members(self.program, inputs, self.outputs, order, frozenset())

    def text(self) -> str:
        """Return a text that is the same for groups that compute the same from inputs of the same forms."""
        # Numbers by first appearance: which values they are in this program does not count.
        number: dict[int, int] = {}

        def name(value: int) -> str:
            return str(number.setdefault(value, len(number)))

        def form(value: int) -> str:
            _storage, shape, strides, _offset, dtype, device = self.program.values[value]
            return f"%{name(value)} {shape} {strides} {dtype} {device.type}"

        lines = [form(value) for value in self.inputs]
        for place, operation in enumerate(self.operations):
            views = self._views(operation.call)
            lines += [f"{call_text(self.program.views[view], name)} -> {name(view)}" for view in views]
            made = [None if v is None else name(v) for v in operation.call.outputs]
            lines.append(f"{place in self.folded} {call_text(operation.call, name)} -> {made}")
        return "\n".join([*lines, *(form(value) for value in self.outputs)])

    def name(self) -> str:
        words = [short_name(operation.call.target) for operation in self.operations]
        return f"fused_{'_'.join(dict.fromkeys(words))}"[:60]

    def _views(self, call: Call) -> list[int]:
        """Return the views that the call needs, those of views last."""
        found: list[int] = []
        given = {*self.inputs}

        def need(value: int) -> None:
            if value not in given and value in self.program.views and value not in found:
                for base in refs(self.program.views[value].arguments):
                    need(base)
                found.append(value)

        for value in values_read(call):
            need(value)
        return found

    def _run(self, call: Call, known: dict[int, Tensor], way: Way) -> Sequence[Any]:
        for value in values_read(call):
            self._need(value, known, way)
        return way(call, known)

    def _again(self, call: Call, known: dict[int, Tensor], way: Way) -> None:
        read = RECOMPUTED[call.target].values(call)
        for value in read:
            self._need(value, known, way)
        # The recomputation may leave out arguments that are not known here.
        given = [known.get(x.value) if isinstance(x, Ref) else x for x in call.arguments]
        statistics = [known[v] for v in (call.outputs[i] for i in STATISTICS) if v is not None]
        result = call.outputs[0]
        assert result is not None
        known[result] = recomputed_call(call, given, statistics)

    def _need(self, value: int, known: dict[int, Tensor], way: Way) -> None:
        if value in known:
            return
        call = self.program.views[value]
        for base in refs(call.arguments):
            self._need(base, known, way)
        results = way(call, known)
        known |= {v: r for v, r in zip(call.outputs, results, strict=True) if v is not None}


def called(call: Call, tensors: Mapping[int, Tensor]) -> Sequence[Any]:
    made = call.target(*substitute(call.arguments, tensors), **substitute(call.keywords, tensors))
    return made if call.several else (made,)


def members_of(program: Program, group: Group, wanted: Container[int]) -> Members:
    """Return the calls of a group that are needed, with their inputs and outputs.

    wanted: the storages that others need.
    """
    own = {x for i in group.members for x in program.operations[i].writes}
    folded = set(group.folded)
    needed = {x for x in own if x in wanted}
    order: list[int] = []
    # From the last; folded operations, which run first, come last here.
    for i in (*reversed(group.members), *reversed(group.folded)):
        if not needed.isdisjoint(program.operations[i].writes):
            order.append(i)
            needed.update(program.values[v].storage for v in _read(program, i, recompute=i in folded))
    order.reverse()
    made = {x for i in order for x in _made(program, i, recompute=i in folded)}
    read = (v for i in order for v in _read(program, i, recompute=i in folded))
    inputs = tuple(dict.fromkeys(v for v in read if program.values[v].storage not in made))
    outputs = tuple(
        value
        for i in order
        if i not in folded
        for value in program.operations[i].call.outputs
        if value is not None and program.values[value].storage in wanted
    )
    places = frozenset(place for place, i in enumerate(order) if i in folded)
    return Members(program, inputs, outputs, [program.operations[i] for i in order], places)


def _read(program: Program, operation: int, *, recompute: bool) -> Sequence[int]:
    call = program.operations[operation].call
    return (
        RECOMPUTED[call.target].values(call) if recompute and call.target in RECOMPUTED else values_read(call)
    )


def _made(program: Program, operation: int, *, recompute: bool) -> Sequence[int]:
    """Return the storages that an operation makes, if it is recomputed only the norm's result."""
    writes = program.operations[operation].writes
    return writes[:1] if recompute and program.operations[operation].call.target in RECOMPUTED else writes
