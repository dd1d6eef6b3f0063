"""Regions in pieces that keep eager PyTorch's bits, against iterations of eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from memplan.planner.baseline import baseline_schedule
from memplan.profiling.compare.comparison import compare
from memplan.profiling.profile.pieces import measured_pieces
from memplan.profiling.profile.profile import graph_from
from memplan.profiling.splitting.choice import Choice
from memplan.profiling.splitting.exact import Exactness
from memplan.profiling.splitting.rules import SUM
from memplan.profiling.splitting.split import split_as_in
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents
from splitting_families import FAMILIES, Traced, traced


def choice(one: Traced) -> Choice:
    return Choice(one.program, one.measured, Exactness(one.program, residents(one.program, one.iteration)))


@pytest.mark.scripts
@pytest.mark.parametrize("name", FAMILIES)
def test_iterations_in_exact_pieces_have_eagers_bits(name: str) -> None:
    one = traced(name)
    chosen = choice(one)
    before = chosen.largest
    found = chosen.within(1)
    assert found is not None
    # A mask of dropout is drawn as a whole.
    assert chosen.largest < (0.85 if name == "dropout" else 0.5) * before
    tensors = residents(one.program, one.iteration)
    graph = graph_from(found.program, measured_pieces(one.program, one.measured, found, tensors))
    step = PlannedStep(one.iteration, found.program, baseline_schedule(graph))
    comparison = compare(one.iteration, step)
    assert comparison.equal
    assert not comparison.spreads


def test_no_number_is_added_up_over_exact_pieces() -> None:
    one = traced("GELU")
    found = choice(one).within(1)
    assert found is not None
    for cut in found.cuts.values():
        for call in cut.region.calls:
            parts = cut.region.patterns[next(v for v in call.outputs if v is not None)].outputs
            assert SUM not in parts
    remade = split_as_in(found.document(), one.program, exact=True)
    assert [*remade.cuts] == [*found.cuts]


def test_pieces_whose_kernel_rounds_otherwise_are_not_taken() -> None:
    one = traced("GELU")
    assert Choice(one.program, one.measured, lambda _split: False).within(1) is None


def test_comparing_leaves_the_users_random_numbers() -> None:
    one = traced("GELU")
    before = torch.get_rng_state()
    choice(one).within(1)
    assert torch.equal(torch.get_rng_state(), before)
