"""Groups of operations of random programs: they hold, and compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import MismatchError
from memplan.graphs.graph import Kind, Phase
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.profiling.fusion import fused as fusing
from memplan.profiling.fusion.folds import folds
from memplan.profiling.fusion.groups import Group, grouped, outside
from memplan.profiling.fusion.kernel import Kernel
from memplan.profiling.fusion.members import Members
from memplan.profiling.fusion.uses import Uses
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Call, Operation, Program, Ref, Storage, Value
from memplan.runtime.codegen.codegen import generate

aten: Any = torch.ops.aten
SIDE = 8
CPU = torch.device("cpu")
TARGETS = {
    "relu": (aten.relu.default, 1),
    "tanh": (aten.tanh.default, 1),
    "mul": (aten.mul.Tensor, 2),
    "add": (aten.add.Tensor, 2),
    "softmax": (aten.softmax.int, 1),
    "mm": (aten.mm.default, 2),
}


class Written:
    """A program over square matrices, written by hand."""

    def __init__(self, inputs: int) -> None:
        self.storages: list[Storage] = []
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self.views: dict[int, Call] = {}
        self.inputs = {f"x{i}": self.value(self.storage(f"x{i}", Kind.INPUT)) for i in range(inputs)}

    def storage(self, name: str, kind: Kind) -> int:
        self.storages.append(Storage(name, 4 * SIDE * SIDE, kind, None))
        return len(self.storages) - 1

    def value(self, storage: int, strides: tuple[int, int] = (SIDE, 1)) -> int:
        self.values.append(Value(storage, (SIDE, SIDE), strides, 0, torch.float32, CPU))
        return len(self.values) - 1

    def call(self, name: str, *arguments: int, phase: Phase = Phase.FORWARD) -> int:
        target, _count = TARGETS[name]
        kind = Kind.ACTIVATION if phase == Phase.FORWARD else Kind.GRADIENT
        own = f"{name}{len(self.operations)}"
        storage = self.storage(own, kind)
        made = self.value(storage)
        more = (1,) if name == "softmax" else ()
        call = Call(target, (*map(Ref, arguments), *more), {}, (made,), several=False)
        reads = tuple(dict.fromkeys(self.values[value].storage for value in arguments))
        self.operations.append(Operation(own, phase, None, call, reads, (storage,), (), random=False))
        return made

    def transposed(self, value: int) -> int:
        storage, _shape, (high, low), *_ = self.values[value]
        view = self.value(storage, (low, high))
        self.views[view] = Call(aten.t.default, (Ref(value),), {}, (view,), several=False)
        return view

    def program(self, *results: int) -> Program:
        outputs = {f"y{i}": value for i, value in enumerate(results)}
        return Program(
            CPU,
            self.storages,
            self.values,
            self.operations,
            self.views,
            {},
            {},
            self.inputs,
            {},
            None,
            {},
            outputs=outputs,
        )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    written = Written(draw(st.integers(1, 3)))
    values = list(written.inputs.values())
    count = draw(st.integers(2, 24))
    turn = draw(st.integers(0, count))
    for number in range(count):
        name = draw(st.sampled_from(sorted(TARGETS)))
        arguments = [draw(st.sampled_from(values)) for _ in range(TARGETS[name][1])]
        if draw(st.booleans()) and name != "softmax":
            arguments = [written.transposed(value) for value in arguments]
        phase = Phase.FORWARD if number < turn else Phase.BACKWARD
        values.append(written.call(name, *arguments, phase=phase))
    made = values[len(written.inputs) :]
    return written.program(*draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)))


def one_by_one(several: Sequence[Members]) -> list[Kernel]:
    """In the place of kernels: each group's calls, with its results laid out as the program has them."""
    return [calls_of(members) for members in several]


def calls_of(members: Members) -> Kernel:
    forms = [members.program.values[value] for value in members.outputs]

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.empty_strided(form.shape, form.strides).copy_(made)
            for form, made in zip(forms, members(*tensors), strict=True)
        ]

    return Kernel(members.name(), members.text(), run)


def results(program: Program) -> list[torch.Tensor]:
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    step = generate(program, baseline_schedule(graph)).compile()
    generator = torch.Generator().manual_seed(0)
    return step([torch.randn(SIDE, SIDE, generator=generator) for _ in program.residents], ())


def units_of(program: Program) -> list[Group]:
    uses = Uses(program, {})
    return grouped(Uses(program, folds(uses)))


@settings(max_examples=150, deadline=None)
@given(programs())
def test_what_is_fused_computes_the_same(program: Program) -> None:
    with patch.object(fusing, "kernels", one_by_one):
        made = fusing.fused(program, units_of(program))
    for one, other in zip(results(program), results(made.program), strict=True):
        assert torch.equal(one, other) or (one.isnan() == other.isnan()).all()


@settings(max_examples=150, deadline=None)
@given(programs())
def test_groups_hold(program: Program) -> None:
    """Each operation is in one, of one phase, in a valid order; none takes more than some operation does."""
    units = units_of(program)
    assert sorted(member for unit in units for member in unit.members) == list(range(len(program.operations)))
    made = {program.values[value].storage for value in program.inputs.values()}
    uses = Uses(program, folds(Uses(program, {})))
    most = max(sum(uses.traffic(i).values()) for i in range(len(program.operations)))
    for unit in units:
        assert len({program.operations[member].phase for member in unit.members}) == 1
        inside = {x for member in unit.members for x in program.operations[member].writes}
        reads = {x for member in unit.members for x in program.operations[member].reads} - inside
        recompute = {x for member in unit.folded for x in program.operations[member].writes}
        assert reads - recompute <= made
        made |= inside
        inputs = {x: uses.sizes[x] for member in unit.members for x in uses.reads[member] - inside}
        assert sum(inputs.values()) + sum(outside(uses, set(unit.members)).values()) <= most


def test_a_group_that_would_take_more_than_any_operation_is_not_made() -> None:
    """A sum of five products, made one by one as they are needed: as one it would need all five at once."""
    written = Written(1)
    (x,) = written.inputs.values()
    total = written.call("mm", x, x)
    for _ in range(4):
        total = written.call("add", total, written.call("mm", x, x))
    program = written.program(total)
    with patch.object(fusing, "kernels", one_by_one):
        made = fusing.fused(program, units_of(program)).program
    before, after = (
        baseline(graph_of(each, [Cost(1.0)] * len(each.operations))).peak for each in (program, made)
    )
    assert after <= before


def test_backward_makes_again_what_forward_made_of_what_is_kept() -> None:
    written = Written(1)
    (x,) = written.inputs.values()
    product = written.call("mm", x, x)
    scaled = written.call("tanh", product)
    loss = written.call("mm", scaled, x)
    back = written.call("mm", loss, product, phase=Phase.BACKWARD)
    gradient = written.call("mul", back, scaled, phase=Phase.BACKWARD)
    program = written.program(gradient)
    units = units_of(program)
    assert [unit for unit in units if unit.folded] == [Group((4,), (1,))]
    with patch.object(fusing, "kernels", one_by_one):
        made = fusing.fused(program, units).program
    (fused,) = (operation for operation in made.operations if isinstance(operation.call.target, Kernel))
    assert {made.storages[read].name for read in fused.reads} == {"mm0", "mm3"}


def test_groups_that_can_not_be_in_a_row_are_refused() -> None:
    """A path leaves the group and comes back."""
    written = Written(1)
    (x,) = written.inputs.values()
    first = written.call("relu", x)
    second = written.call("mm", first, x)
    program = written.program(written.call("add", first, second))
    for units in ([Group((0, 2)), Group((1,))], [Group((1,)), Group((0, 2))]):
        with (
            patch.object(fusing, "kernels", one_by_one),
            pytest.raises(MismatchError, match="before what it"),
        ):
            fusing.fused(program, units)
