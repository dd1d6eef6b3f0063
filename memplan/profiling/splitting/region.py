"""A region: operations that run in pieces together, and its calls in a piece. growth.py finds it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ...program.program import Call, Operation, Program, values_read
from .rows import Along
from .rules import Pattern


class Seed(NamedTuple):
    """Where a region comes from: the same program has the same region there.

    value, along, least, steps: see `regions_at`. way, place: of what it yields.
    """

    value: int
    along: Along
    least: int
    steps: int | None
    way: int
    place: int


@dataclass(frozen=True, eq=False)
class Region:
    """Operations that run in pieces.

    members: indices of the operations that it replaces, in order.
    recomputed: indices of forward operations that its pieces recompute, in order; another region has them.
    patterns: how each call splits, by its first result.
    rows: number of all.
    seed: where it comes from.
    """

    program: Program
    members: tuple[int, ...]
    recomputed: tuple[int, ...]
    patterns: Mapping[int, Pattern]
    rows: int
    seed: Seed | None = None

    @cached_property
    def key(self) -> object:
        """The key that is equal for regions of the same operations along the same rows."""
        parts = (found.outputs for call in self.calls[:1] if (found := self.patterns[first_made(call)]))
        return self.members, self.recomputed, self.rows, *parts

    @cached_property
    def operations(self) -> list[Operation]:
        return [self.program.operations[i] for i in (*self.recomputed, *self.members)]

    @cached_property
    def made(self) -> frozenset[int]:
        """The storages that its calls make."""
        return frozenset(x for operation in self.operations for x in operation.writes)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The values that it reads of others."""
        read = (v for operation in self.operations for v in values_read(operation.call))
        return tuple(dict.fromkeys(v for v in read if self.program.values[v].storage not in self.made))

    def with_all_rows(self) -> Region:
        """Return the region with its rows counted from the first that one of its tensors has, to the last.

        The tensor that it was grown from may be a slice of others.
        """
        parts = [
            part
            for call in self.calls
            for part in (
                *self.patterns[first_made(call)].inputs.values(),
                *self.patterns[first_made(call)].outputs,
            )
            if isinstance(part, Along)
        ]
        before, after = (min((part[place] for part in parts), default=0) for place in (3, 4))
        if not before and not after:
            return self
        patterns = {value: found.moved(-before, -after) for value, found in self.patterns.items()}
        return replace(self, patterns=patterns, rows=self.rows - before - after)

    def outputs(self, needed: Container[int]) -> tuple[int, ...]:
        """Return the values that others read. needed: the storages that they read."""
        return tuple(
            value
            for i in self.members
            for value in self.program.operations[i].call.outputs
            if value is not None and self.program.values[value].storage in needed
        )

    @cached_property
    def calls(self) -> list[Call]:
        """Its calls in the order in which a piece makes them, views before who reads them."""
        found, done = list[Call](), {*self.inputs}

        def add_view(value: int) -> None:
            if value in self.program.views and value not in done:
                call = self.program.views[value]
                for base in values_read(call):
                    add_view(base)
                done.update(made_by(call))
                found.append(call)

        for operation in self.operations:
            for value in values_read(operation.call):
                add_view(value)
            found.append(operation.call)
        return found

    def rows_of_piece(self, pieces: int) -> int | None:
        """Return the rows of each of so many pieces but the last; None if some tensor has no such blocks."""
        rows = -(-self.rows // pieces)
        # The first piece, one in between, the last.
        runs = [(first, min(rows, self.rows - first)) for first in {0, rows, (self.rows - 1) // rows * rows}]
        for call in self.calls:
            found = self.patterns[first_made(call)]
            for value, part in (*found.inputs.items(), *zip(call.outputs, found.outputs, strict=True)):
                if value is None or not isinstance(part, Along):
                    continue
                shape = self.program.values[value].shape
                several = sum(size > 1 for size in shape[part.start : part.stop]) > 1
                sizes = {len(part.span(shape, *run)) for run in runs}
                # None of it in a piece: there is nothing to call operators with.
                if (
                    0 in sizes
                    or (several and len(sizes) > 1)
                    or any(part.block(shape, size) is None for size in sizes)
                ):
                    return None
        return rows


def made_by(call: Call) -> Iterator[int]:
    return (value for value in call.outputs if value is not None)


def first_made(call: Call) -> int:
    """Return the first result that is read: a call is known by it."""
    return next(made_by(call))
