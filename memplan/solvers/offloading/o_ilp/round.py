"""Rounding of O-ILP's fractions to integers: an option per block, an update per parcel.

Then the rest is re-solved.
Errors are handed on from block to block (error diffusion), so identical blocks with the same fractions get
the options in turn, and links and memory stay evenly loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

from ....graphs.arrays import Floats
from ...milp.model import Program
from .model import OIlpProgram
from .tensors import Rounding


@dataclass(frozen=True)
class IntegerSolution:
    """The integers of an answer.

    options: per block the number of its option.
    hosted: per group the numbers of its parcels that are updated on the CPU.
    """

    options: tuple[int, ...]
    hosted: tuple[frozenset[int], ...]


def rounded(program: OIlpProgram, x: Floats) -> IntegerSolution:
    """Round a fractional answer: blocks from first to last, then groups in the order in which they are
    updated."""
    sums: list[float] = []
    options: list[int] = []
    for columns in program.choice:
        sums = [a + b for a, b in zip_longest(sums, (c.value(x) for c in columns), fillvalue=0.0)]
        # An option that the program uses at all, and of these the one that is owed most.
        chosen = max(range(len(columns)), key=lambda o: (columns[o].value(x) > 1e-3, sums[o]))
        # The difference between the fractions and the choice is carried to the next block.
        sums[chosen] -= 1.0
        options.append(chosen)
    rounding, groups = Rounding(), program.iteration.groups
    hosted = [frozenset[int]()] * len(groups)
    for g in sorted(range(len(groups)), key=lambda g: groups[g].last or 0):
        part = program.weights[g].on_host
        if part.terms:
            sizes = [parcel.bytes for parcel in groups[g].parcels]
            fraction = part.value(x) / max(program.share.value(x), 1e-9)
            if fraction > 1e-3:
                hosted[g] = frozenset(rounding.share("update", sizes, fraction * sum(sizes)))
    return IntegerSolution(tuple(options), tuple(hosted))


def reserving(program: OIlpProgram, reserve_bytes: float) -> Program:
    """Return the program with so much of the device left free (4.17)."""
    written = program.program()
    lower, upper = written.lower.copy(), written.upper.copy()
    reserve = program.reserve.column
    lower[reserve] = upper[reserve] = reserve_bytes / program.byte
    return replace(written, lower=lower, upper=upper)


def fixed(program: OIlpProgram, written: Program, choice: IntegerSolution) -> Program:
    """Return the program with the integers of a choice fixed."""
    lower, upper = written.lower.copy(), written.upper.copy()
    for columns, chosen in zip(program.choice, choice.options, strict=True):
        for number, column in enumerate(columns):
            lower[column.column] = upper[column.column] = float(number == chosen)
    for group, stocks, parcels in zip(program.iteration.groups, program.weights, choice.hosted, strict=True):
        if stocks.on_host.terms:
            share = sum(group.parcels[p].bytes for p in parcels) / max(1, group.bytes)
            lower[stocks.on_host.column] = upper[stocks.on_host.column] = share
    return replace(written, lower=lower, upper=upper)


def choice_start(program: OIlpProgram, choice: IntegerSolution) -> dict[int, float]:
    """Return the choice of options as a warm start for the integer program."""
    return {
        column.column: float(number == chosen)
        for columns, chosen in zip(program.choice, choice.options, strict=True)
        for number, column in enumerate(columns)
    }
