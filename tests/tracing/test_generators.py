"""Random generators that the model holds: drawn from as in eager, where a draw is repeated too; seeds that
the iteration sets are refused."""

from __future__ import annotations

import random
from contextlib import nullcontext

import memplan
import pytest
import torch
from memplan.model.iteration import Iteration
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.output_layouts import residents, trace_real_layouts
from memplan.tracing.trace import trace
from not_none import not_none
from recomputing import recomputing
from torch import nn


class Noisy(nn.Module):
    """Three layers; `draw(module, x)` stands behind each."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _layer in range(3))
        self.one = torch.Generator().manual_seed(3)
        self.others = {"two": torch.Generator().manual_seed(5)}
        self.draw = draw

    def forward(self, x):
        for layer in self.layers:
            x = self.draw(self, nn.functional.gelu(layer(x)))
        return x.square().mean()


DRAWS = {
    "randn": lambda m, x: x + torch.randn(x.shape, generator=m.one),
    "two and the default": lambda m, x: nn.functional.dropout(
        x + torch.rand(x.shape, generator=m.one) * torch.rand(x.shape, generator=m.others["two"]), 0.3
    ),
    "bernoulli": lambda m, x: x * torch.bernoulli(torch.full_like(x, 0.7), generator=m.one),
    "in place": lambda m, x: x + torch.empty_like(x).normal_(generator=m.one),
    "randperm": lambda m, x: x[:, torch.randperm(6, generator=m.others["two"])],
    "the default by name": lambda _m, x: x + torch.randn(x.shape, generator=torch.default_generator),
}


def states(module):
    generators = (module.one, module.others["two"], torch.default_generator)
    return [generator.get_state() for generator in generators]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DRAWS)
def test_three_steps_are_eagers(name):
    module, other = Noisy(DRAWS[name]), Noisy(DRAWS[name])
    batches = [torch.randn(4, 6) for _batch in range(3)]
    torch.manual_seed(1)
    expected = [other(batch) for batch in batches]
    torch.stack(expected).sum().backward()
    left = states(other)
    torch.manual_seed(1)
    before = states(module)
    step = memplan.optimize(module, batches[0], budget="100%", solver="store-all", cache=False)
    assert all(map(torch.equal, states(module), before))
    for batch, loss in zip(batches, expected, strict=True):
        planned = step(batch)
        planned.backward()
        assert torch.equal(planned, loss)
    assert all(map(torch.equal, states(module), left))
    for own, theirs in zip(module.parameters(), other.parameters(), strict=True):
        # Summed in another order; `compare` has them bitwise.
        assert torch.allclose(not_none(own.grad), not_none(theirs.grad))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DRAWS)
def test_recomputing(name):
    iteration = Iteration(Noisy(DRAWS[name]), (torch.randn(4, 6),))
    program = trace_real_layouts(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    schedule = recomputing(graph, random.Random(0), share=0.8)
    drawing = [index for index, operation in enumerate(program.operations) if operation.random]
    runs = [target for verb, target, _where in schedule.rows() if verb == Verb.COMPUTE]
    assert any(runs.count(index) > 1 for index in drawing), "nothing is drawn again: this shows nothing"
    step = PlannedStep(iteration, program, schedule, Terms(graph))
    assert compare(iteration, step).equal
    measured = peaks(step, iteration.inputs)  # with the state that PyTorch hands out as a tensor
    assert measured.device - measured.extra <= simulate(graph, schedule).figures.peak <= measured.device


@pytest.mark.scripts
def test_which_generator_is_drawn_from_counts():
    def fingerprint(draw):
        return trace(Iteration(Noisy(draw), (torch.randn(4, 6),))).fingerprint

    one, two = (lambda m, x: x + torch.rand((), generator=m.one)), DRAWS["randperm"]
    assert fingerprint(one) == fingerprint(one)
    other = fingerprint(lambda m, x: x + torch.rand((), generator=m.others["two"]))
    assert len({fingerprint(one), other, fingerprint(two)}) == 3


def test_another_seed_and_another_generator_are_followed():
    """Another generator has another plan."""
    module, x = Noisy(DRAWS["randn"]), torch.randn(4, 6)
    step = memplan.optimize(module, x, budget="100%", solver="store-all", cache=False)
    for warned in (nullcontext(), pytest.warns(UserWarning, match="module.one is .*another plan is made")):
        losses = []
        with warned:
            for run in (step, module):
                module.one.manual_seed(11)
                losses.append([run(x).detach() for _iteration in range(2)])
        assert all(map(torch.equal, *losses))
        module.one = torch.Generator()
    assert len(step.plans) == 2


def forked(_module, x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return x + torch.randn(x.shape)


GLOBAL = torch.Generator()
SEEDS = {
    "manual_seed": lambda _m, x: (torch.manual_seed(0), x + torch.randn(x.shape))[1],
    "manual_seed after": lambda _m, x: (x + torch.randn(x.shape), torch.manual_seed(0))[0],
    "its own": lambda m, x: (m.one.manual_seed(3), x + torch.randn(x.shape, generator=m.one))[1],
    "fork_rng": forked,
}
NOT_HELD = {
    "a global": lambda _m, x: x + torch.randn(x.shape, generator=GLOBAL),
    "a new one": lambda _m, x: x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", [*SEEDS, *NOT_HELD])
def test_what_a_plan_would_draw_otherwise(name):
    line = "was seeded in the iteration.*into a buffer" if name in SEEDS else "make it in __init__, keep it"
    module = Noisy({**SEEDS, **NOT_HELD}[name])
    torch.manual_seed(0)  # the seed that the code sets, too
    before = states(module)
    with pytest.raises(TraceError, match=rf"test_generators.py:\d+: .*{line}"):
        trace(Iteration(module, (torch.randn(4, 6),)))
    assert all(map(torch.equal, states(module)[:2], before[:2]))
