"""A program with groups of its operations as one compiled operation each.

A tensor that only its group uses is not in the program any more, and a tensor without readers is not
computed. Names of what stays and the fingerprint are those of the program that was fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ...graphs.errors import MismatchError
from ...graphs.graph import Kind
from ...program.names import Names, operation_name
from ...program.program import Call, Operation, Program, Ref
from ...program.renumbered import with_operations
from .groups import Group
from .kernel import Kernel, kernels
from .members import Members, members_of


class Replacement(Protocol):
    """Interface of what runs instead of some operations. key: the same for what computes the same."""

    @property
    def key(self) -> str: ...
    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]: ...


Kernels = Mapping[str, tuple[Members, Replacement]]
"""By the name of an operation, the calls of which it is made, and what runs instead of them."""


class Fused(NamedTuple):
    """A program with compiled groups.

    groups: by the name of the operation that each has become.
    failed: groups without a kernel; if there are any, the program is the unfused one.
    kernels: by the name of the operation too.
    """

    program: Program
    groups: Mapping[str, Group]
    kernels: Kernels
    failed: Sequence[Group] = ()


def fused(program: Program, units: Sequence[Group]) -> Fused:
    """Compile each group into one operation.

    units: all operations in their new order, each a member of one. A unit of one operation with nothing
        folded in it stays as it is.
    """
    live = _live(program, units)
    wanted = {group: members for group, members in live if members is not None}
    made = dict(zip(wanted, kernels(list(wanted.values())), strict=True))
    if failed := [group for group, one in made.items() if one is None]:
        return Fused(program, {}, {}, failed)
    names = Names()
    # Names of operations that stay are taken first, so that no kernel gets one of them.
    for group, members in live:
        if members is None:
            names.unique(program.operations[group.members[0]].name)
    groups: dict[str, Group] = {}
    by_name: dict[str, tuple[Members, Replacement]] = {}
    operations: list[Operation] = []
    for group, members in live:
        one = made.get(group)
        if members is None or one is None:
            operations.append(program.operations[group.members[0]])
            continue
        operation = _operation(names, one, members)
        operations.append(operation)
        groups[operation.name], by_name[operation.name] = group, (members, one)
    _check_order(program, operations)
    return Fused(with_operations(program, operations), groups, by_name)


def _live(program: Program, units: Sequence[Group]) -> list[tuple[Group, Members | None]]:
    """Return the units that something needs, in order, with the members of those that are to be compiled."""
    wanted = set(program.results)
    found: list[tuple[Group, Members | None]] = []
    # From the last: what later units need is known.
    for group in reversed(units):
        if len(group.members) > 1 or group.folded:
            members = members_of(program, group, wanted)
            if members.outputs:
                found.append((group, members))
                wanted.update(program.values[value].storage for value in members.inputs)
            continue
        operation = program.operations[min(group.members)]
        # A draw moves the generator on, even if nothing reads its result.
        if operation.random or operation.once or not wanted.isdisjoint(operation.writes):
            found.append((group, None))
            wanted.update((*operation.reads, *operation.mutates))
    return found[::-1]


def _operation(names: Names, made: Kernel, members: Members) -> Operation:
    values = members.program.values
    own = [op for place, op in enumerate(members.operations) if place not in members.folded]
    first = own[0]
    reads, writes = (
        tuple(dict.fromkeys(values[value].storage for value in group))
        for group in (members.inputs, members.outputs)
    )
    call = Call(made, tuple(Ref(value) for value in members.inputs), {}, members.outputs, several=True)
    name = names.unique(operation_name(made, first.layer, first.phase))
    return Operation(
        name=name,
        phase=first.phase,
        layer=first.layer,
        call=call,
        reads=reads,
        writes=writes,
        mutates=(),
        random=False,
    )


def _check_order(program: Program, operations: Sequence[Operation]) -> None:
    made = {x for x, storage in enumerate(program.storages) if storage.kind <= Kind.OPTIMIZER_STATE}
    for operation in operations:
        if not made.issuperset(operation.reads):
            raise MismatchError(f"{operation.name} stands before what it reads")
        made.update(operation.writes)
