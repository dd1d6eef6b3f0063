"""Planned updates beside torch.optim's, with every option of AdamW, Adam and SGD, bit by bit."""

import copy

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as some
from memplan.graphs.errors import InputError, MismatchError
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline_schedule
from memplan.program.graph import Cost, graph_of
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from torch import nn

WAYS = ({}, {"foreach": False}, {"foreach": True}, {"fused": True})
"""Which implementation. PyTorch's default on the CPU is one tensor after the other."""


class Odd(nn.Module):
    """One weight with a tail behind whole vectors, one transposed, one number."""

    def __init__(self, dtype):
        super().__init__()
        self.wide = nn.Parameter(torch.randn(5, 67, dtype=dtype))
        self.turned = nn.Parameter(torch.randn(3, 67, dtype=dtype).t())
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x):
        return (((x @ self.wide).tanh() @ self.turned) * self.scale).square().mean()


def step_of(module, optimizer, x):
    iteration = Iteration(module, (x,), None, Updates(optimizer))
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    return PlannedStep(iteration, program, baseline_schedule(graph))


@some.composite
def optimizers(draw):
    """What makes one. Decays and rates are any, zeros among them."""
    decay = draw(some.sampled_from([0.0, 0.01, 0.3]))
    common = {"weight_decay": decay, "maximize": draw(some.booleans()), **draw(some.sampled_from(WAYS))}
    rate = draw(some.floats(1e-4, 0.02))
    kind = draw(some.sampled_from([torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD]))
    if kind is torch.optim.SGD:
        momentum = draw(some.sampled_from([0.0, 0.3, 0.9]))
        nesterov = bool(momentum) and draw(some.booleans())
        dampening = 0.0 if nesterov else draw(some.sampled_from([0.0, 0.2]))
        common |= {"momentum": momentum, "nesterov": nesterov, "dampening": dampening}
    else:
        common |= {
            "amsgrad": draw(some.booleans()),
            "betas": draw(some.sampled_from([(0.9, 0.999), (0.0, 0.5)])),
        }
        common["eps"] = draw(some.sampled_from([1e-8, 1e-3]))
        if kind is torch.optim.Adam:
            common["decoupled_weight_decay"] = draw(some.booleans())
    tensor = not common.get("foreach") and draw(some.booleans())
    note(f"{kind.__name__} lr={rate} tensor={tensor} {common}")
    return lambda parameters: kind(parameters, lr=torch.tensor(rate) if tensor else rate, **common)


@pytest.mark.scripts
@settings(max_examples=25, deadline=None)
@given(optimizers(), some.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_four_steps_are_those_of_torch_optim(make, dtype):
    torch.manual_seed(0)
    module = Odd(dtype)
    x = torch.randn(4, 5, dtype=dtype)
    other = copy.deepcopy(module)
    own, theirs = make(module.parameters()), make(other.parameters())
    step = step_of(module, own, x)
    for _ in range(4):
        planned = step(x)
        theirs.zero_grad()
        loss = other(x)
        loss.backward()
        theirs.step()
        assert torch.equal(planned, loss)
    for mine, baseline in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, baseline)
        mine_states, plain_states = own.state[mine], theirs.state[baseline]
        assert mine_states.keys() == plain_states.keys()
        for name, state in plain_states.items():
            if state is not None:
                assert torch.equal(mine_states[name], state), name
                assert (mine_states[name].dtype, mine_states[name].stride()) == (state.dtype, state.stride())
    loaded = make(module.parameters())
    loaded.load_state_dict(own.state_dict())


def test_complex_weights_have_moments_of_both_parts():
    class Turn(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))

        def forward(self, x):
            return (x @ self.weight).abs().square().sum()

    torch.manual_seed(0)
    module = Turn()
    x, other = torch.randn(2, 3, dtype=torch.complex64), copy.deepcopy(module)
    own, theirs = (torch.optim.Adam(m.parameters(), amsgrad=True) for m in (module, other))
    step = step_of(module, own, x)
    for _ in range(3):
        step(x)
        theirs.zero_grad()
        other(x).backward()
        theirs.step()
    assert torch.equal(module.weight, other.weight)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"differentiable": True},
            "AdamW with differentiable=True can't be planned: a plan calls kernels alone",
        ),
        ({"betas": (torch.tensor(0.9), torch.tensor(0.99))}, "AdamW with tensors as betas can't be planned"),
    ],
)
def test_what_stays_refused(options, line):
    module = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters(), **options)
    with pytest.raises(InputError, match=line):
        trace(Iteration(module, (torch.ones(1, 2),), torch.sum, Updates(optimizer)))


def test_a_rate_that_becomes_a_tensor_rounds_otherwise_and_is_refused():
    module = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.ones(1, 2)
    iteration = Iteration(module, (x,), torch.sum, Updates(optimizer))
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    step = PlannedStep(iteration, program, baseline_schedule(graph))
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    with pytest.raises(MismatchError, match=r"lr is a tensor of torch.float32 in group 0.* is for a number"):
        step(x)
