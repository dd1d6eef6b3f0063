"""The order of reads and writes of one memory: a rule that every program keeps, whether traced or read from a
file.

    forward and backward read the weight ─▶ forward's own change of it is written back ─▶ its updates

Forward may change a weight in place (a clamp, an embedding with `max_norm`). A trace writes that change back
at its end, as one more operation; an update that ran before it would be overwritten without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ..graphs.errors import InputError, MismatchError
from ..model.attached import named_buffers
from ..model.iteration import Iteration
from ..program.program import Operation, Program
from ..program.state_blocks import state_and_rows
from ..torch_support.reach import spelled
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_tensors import memory_of
from .averaged import AVERAGE
from .masters import MASTER
from .updates import updates_weights


def check_order(program: Program) -> None:
    """Raise MismatchError if an operation other than an update reads or changes a storage after its
    update."""
    updated: dict[int, Operation] = {}
    for operation in program.operations:
        if updates_weights(operation):
            updated |= dict.fromkeys(operation.mutates, operation)
            continue
        for storage in (*operation.reads, *operation.mutates):
            if storage in updated:
                raise MismatchError(
                    f"{operation.name} uses {program.storages[storage].name} after "
                    f"{updated[storage].name}: an update comes after every other use of its weight"
                )


def check_overlaps(program: Program, iteration: Iteration) -> None:
    """Refuse what is done to one memory under two names and can't be planned. Raises InputError."""
    _check_constants(program, iteration)
    updates = [operation for operation in program.operations if updates_weights(operation)]
    changed = {x for one in program.operations if not updates_weights(one) for x in one.mutates}
    states = [(name, state_and_rows(state)[0]) for name, state in program.states]
    averaged = {name for name, state in states if state == AVERAGE}
    for name, state in states:
        if state == MASTER and program.values[program.parameters[name]].storage in changed:
            raise InputError(
                f"master_weights=True: forward changes {name} in place, which the update would overwrite "
                "by its master: leave masters out, or train in float32 with autocast=torch.bfloat16"
            )
    for one, other, storage in _overlaps(program):
        if storage in changed:
            raise InputError(
                f"{one} and {other} lie in one memory, and forward changes it in place: use one tensor "
                f"under both names (module.{other} = module.{one}), or give {other} memory of its own"
            )
        if updates and one in averaged and other in averaged:
            raise InputError(
                f"ema: {one} and {other} are two parameters in one memory, whose averages would differ: use "
                f"one parameter under both names (module.{other} = module.{one})"
            )


def _check_constants(program: Program, iteration: Iteration) -> None:
    """Check the tensors that attributes hold: each has a separate storage in the program, whatever memory
    it is in.
    """
    changed = {x for one in program.operations for x in one.mutates}
    named = {**program.parameters, **program.buffers}
    module = iteration.module
    there = {**dict(module.named_parameters()), **named_buffers(module)}
    memories = {
        memory_of(there[name]): name
        for name, value in named.items()
        if program.values[value].storage in changed and not isinstance(there[name], FakeTensor)
    }
    for value, constant in program.constants.items():
        if (name := memories.get(memory_of(constant))) is not None:
            path = spelled(program.held.get(value, ("a tensor",)))
            raise InputError(
                f"{path} lies in the memory of {name}, which an iteration changes: read module.{name} itself "
                f"in forward, or make {path} a copy of it"
            )


def _overlaps(program: Program) -> Iterator[tuple[str, str, int]]:
    """Yield the pairs of names of parameters, buffers and inputs that share bytes of a storage."""
    residents: dict[int, list[str]] = {}
    named = {**program.parameters, **program.buffers, **program.inputs}
    for name, value in named.items():
        residents.setdefault(program.values[value].storage, []).append(name)
    for storage, names in residents.items():
        for one, other in combinations(names, 2):
            first, second = (program.values[named[name]] for name in (one, other))
            begins = [value.offset * value.dtype.itemsize for value in (first, second)]
            # Two names of one value are one tensor. Views that interleave count as overlapping,
            # which refuses more than is wrong, never less.
            if named[one] != named[other] and begins[0] < second.end and begins[1] < first.end:
                yield one, other, storage
