"""Names of a program's operations that do not depend on the order in which independent ones were traced.

Libraries loop over sets (`for kind in set(layer_types)`), whose order differs between processes: the same
operations come in another order. So an operation is known by what it computes from what (`source`) and by
what becomes of it (`use`), as hashes; `addmm`, `addmm_2`, … are numbered by its depth and these. Those that
are equal in all that are interchangeable, and numbered as what they read is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

from ..graphs.graph import Kind, Phase
from .call_text import call_text, content
from .names import Names, operation_name
from .program import Operation, Program, values_read


def named(program: Program) -> Program:
    """Rename the operations, and what they make, of a program before updates of weights."""
    ranks = _Identities(program).ranks()
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    storages = list(program.storages)
    operations = list(program.operations)
    made = {storage for operation in operations for storage in operation.writes}
    of_storages, of_operations = Names(), Names()
    for number, storage in enumerate(_constants(program, order)):
        storages[storage] = storages[storage]._replace(name=f"constants.{number}")
    # Names that stay are taken first, so that no new name is one of them.
    for storage, one in enumerate(storages):
        if storage not in made or one.kind == Kind.PARAMETER_GRADIENT or one.name == LOSS:
            of_storages.unique(one.name)
    for index in order:
        before = operations[index]
        phase = Phase.FORWARD if before.phase == Phase.LOSS else before.phase
        name = of_operations.unique(operation_name(before.call.target, before.layer, phase))
        operations[index] = before._replace(name=name)
        for place, storage in enumerate(before.writes):
            # Those two kinds are named by what they are, all others by what makes them.
            if storages[storage].kind != Kind.PARAMETER_GRADIENT and storages[storage].name != LOSS:
                own = f"{name}.{place}" if before.call.several else name
                storages[storage] = storages[storage]._replace(name=of_storages.unique(own))
    return replace(program, operations=operations, storages=storages)


LOSS = "loss"


class _Identities:
    """Hashes that identify values and operations.

    source: per value, a hash of what it is computed from. Both kinds of hashes are per operation too.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._values: dict[int, str] = dict(_residents(program))
        self._source: list[str] = []
        self._depth: list[int] = []
        self._maker: dict[int, int] = {}
        drawn = 0
        for index, operation in enumerate(program.operations):
            drawn += operation.random  # draws are never interchangeable: their order decides their numbers
            label = f"{operation.phase.word} {operation.layer} {drawn if operation.random else ''}"
            self._source.append(_hash(f"{label} {call_text(operation.call, self._value)}"))
            self._values |= {
                value: _hash(f"{self._source[index]} {place}")
                for place, value in enumerate(operation.call.outputs)
                if value is not None
            }
            made_by = [self._maker[storage] for storage in operation.reads if storage in self._maker]
            self._depth.append(1 + max((self._depth[producer] for producer in made_by), default=0))
            self._maker.update(dict.fromkeys(operation.writes, index))
        self._use = self._uses()

    def ranks(self) -> list[int]:
        """Return the operations' numbers, the same in every process."""
        keys = list(zip(self._depth, self._source, self._use, strict=True))
        ranks = [0] * len(keys)
        for rank, index in enumerate(sorted(range(len(keys)), key=lambda index: (keys[index], index))):
            ranks[index] = rank
        times = Counter(keys)
        twins = [index for index, key in enumerate(keys) if times[key] > 1]
        # From the inputs on: deeper twins are ordered by the ranks of what they read.
        for depth in sorted({self._depth[index] for index in twins}):
            self._order_twins([index for index in twins if self._depth[index] == depth], keys, ranks)
        return ranks

    def _order_twins(self, twins: list[int], keys: list[tuple[int, str, str]], ranks: list[int]) -> None:
        """Reorder the ranks of equal operations by the ranks of the operations that they read."""
        for key in sorted({keys[index] for index in twins}):
            identical = [index for index in twins if keys[index] == key]
            places = sorted(ranks[index] for index in identical)
            identical.sort(key=lambda index: (self._read(index, ranks), index))
            for index, place in zip(identical, places, strict=True):
                ranks[index] = place

    def _read(self, index: int, ranks: list[int]) -> tuple[int, ...]:
        reads = self._program.operations[index].reads
        return tuple(ranks[self._maker[storage]] for storage in reads if storage in self._maker)

    def _uses(self) -> list[str]:
        """Hash what becomes of each operation's results, from the last operation to the first."""
        program = self._program
        used: dict[int, list[str]] = {}
        loss = {} if program.loss is None else {LOSS: program.loss}
        outputs = {f"output {name}": value for name, value in program.outputs.items()}
        inputs = {f"input {name}": value for name, value in program.input_gradients.items()}
        for name, value in {**loss, **outputs, **inputs, **program.gradients}.items():
            used.setdefault(program.values[value].storage, []).append(f"result {name}")
        uses = [""] * len(program.operations)
        for index in reversed(range(len(program.operations))):
            operation = program.operations[index]
            # Sorted, since consumers come in the order of the trace.
            becomes = [sorted(used.get(storage, ())) for storage in operation.writes]
            uses[index] = _hash(repr(becomes))
            for place, storage in enumerate(operation.reads):
                used.setdefault(storage, []).append(f"{place} {self._source[index]} {uses[index]}")
        return uses

    def _value(self, value: int) -> str:
        if value not in self._values:
            call = self._program.views[value]
            self._values[value] = _hash(f"{call_text(call, self._value)} {call.outputs.index(value)}")
        return self._values[value]


def _residents(program: Program) -> Iterator[tuple[int, str]]:
    groups = {"p": program.parameters, "b": program.buffers, "i": program.inputs}
    for kind, group in groups.items():
        yield from ((value, f"{kind} {name}") for name, value in group.items())
    for value, tensor in program.constants.items():
        form = program.values[value]
        what = program.held.get(value) or content(tensor)
        yield value, _hash(f"{what} {form.shape} {form.strides} {form.offset} {form.dtype}")


def _constants(program: Program, order: list[int]) -> list[int]:
    """Return the constants' storages, in the order of their first use."""
    own = {program.values[value].storage for value in program.constants}
    used = (storage for index in order for storage in _read_in_order(program, program.operations[index]))
    # Last come those that no operation reads.
    return list(dict.fromkeys((*(storage for storage in used if storage in own), *sorted(own))))


def _read_in_order(program: Program, operation: Operation) -> list[int]:
    return [program.values[value].storage for value in values_read(operation.call)]


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()
