"""Clipping by norm in planned updates: norms, weights and states of plain PyTorch, bit by bit."""

from __future__ import annotations

import copy

import memplan
import pytest
import torch
import unplanned
from memplan.graphs.machine import Links, Machine
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches(lengths=(48, 48, 20, 48)):
    torch.manual_seed(7)
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


def adamw(module):
    """Two groups, one without decay, and rates that move."""
    small = [p for p in module.parameters() if p.dim() == 1]
    large = [p for p in module.parameters() if p.dim() > 1]
    return torch.optim.AdamW([{"params": large}, {"params": small, "weight_decay": 0.0}], lr=0.01)


def sgd(module):
    return torch.optim.SGD(module.parameters(), 0.1, 0.9, weight_decay=0.01, nesterov=True)


NORMS = (0.3, 0.3, 100.0, 0.1)
"""By step: two that bite, one that does not, a smaller one."""


def trained_plainly(module, optimizer, given):
    rates = OneCycleLR(optimizer, 0.02, total_steps=8)
    torch.manual_seed(11)
    seen = []
    for (x, labels), norm in zip(given, NORMS, strict=True):
        loss = functional.cross_entropy(module(x), labels)
        loss.backward()
        seen += [loss.detach(), nn.utils.clip_grad_norm_(module.parameters(), norm)]
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
    return seen


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize("moved", [False, True], ids=["device alone", "weights moved"])
def test_clipped_updates_are_those_of_plain_pytorch(make, moved: bool) -> None:
    module, given = model(), batches()
    baseline = copy.deepcopy(module)
    optimizer, other = make(module), make(baseline)
    step = memplan.optimize(
        module,
        given[0][0],
        targets=given[0][1],
        loss_fn=functional.cross_entropy,
        budget="70%",
        optimizer=optimizer,
        update="after" if moved else "in-backward",
        max_grad_norm=NORMS[0],
        machine=Machine(links=Links(1e9, 1e9)) if moved else None,
        solver="joint" if moved else "rockmate",
        time_limit=0.5,
        cache=False,
    )
    rates = OneCycleLR(optimizer, 0.02, total_steps=8)
    torch.manual_seed(11)
    seen = []
    for (x, labels), norm in zip(given, NORMS, strict=True):
        step.max_grad_norm = norm
        seen += [step(x, targets=labels), step.grad_norm]
        rates.step()
    expected = trained_plainly(baseline, other, given)
    assert [norm > most for norm, most in zip(expected[1::2], NORMS, strict=True)] == [
        True,
        True,
        False,
        True,
    ]
    assert all(torch.equal(own, theirs) for own, theirs in zip(seen, expected, strict=True))
    for (name, own), theirs in zip(module.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own, theirs), name
        row, states = other.state[theirs], optimizer.state[own]
        assert row.keys() == states.keys()
        assert all(torch.equal(row[state], states[state]) for state in row), name


class Odd(nn.Module):
    """Parameters of which some are frozen, unused, tied or of another type, as the test asks."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.kinds = kinds
        types = {"half": torch.bfloat16, "double": torch.float64}
        for number, kind in enumerate(kinds):
            made = nn.Parameter(torch.randn(7, 7, dtype=types.get(kind)), requires_grad=kind != "frozen")
            setattr(self, f"w{number}", self.w0 if kind == "tied" else made)

    def forward(self, x):
        for number, kind in enumerate(self.kinds):
            if kind != "unused":
                w = getattr(self, f"w{number}")
                x = (x.to(w.dtype) @ w).tanh().float()
        return x.square().sum()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kinds",
    [
        ("plain",),
        ("plain", "frozen", "unused", "plain"),
        ("plain", "plain", "tied"),
        ("half", "plain", "half", "double", "plain"),
        ("double", "half", "plain", "double"),
        ("half", "half"),
    ],
)
def test_the_norm_is_torchs_of_odd_sets_of_parameters(kinds) -> None:
    """Those of one type together, in torch's order: the comparison within `optimize` sees each bit."""
    module, x = Odd(*kinds), torch.randn(5, 7)
    baseline = copy.deepcopy(module)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1)
    step = memplan.optimize(
        module, x, budget="100%", optimizer=optimizer, max_grad_norm=0.25, solver="store-all", cache=False
    )
    step(x)
    baseline(x).backward()
    norm = nn.utils.clip_grad_norm_(baseline.parameters(), 0.25)
    torch.optim.SGD(baseline.parameters(), 0.1).step()
    assert step.grad_norm is not None
    assert torch.equal(step.grad_norm, norm)
    assert norm > 0.25
    assert all(map(torch.equal, module.parameters(), baseline.parameters()))


@pytest.mark.filterwarnings("ignore:Adafactor is not in the plan")
def test_an_optimizer_that_steps_behind_the_plan_is_given_clipped_gradients() -> None:
    module, x = Odd("plain", "frozen", "plain"), torch.randn(5, 7)
    baseline = copy.deepcopy(module)
    own, theirs = unplanned.Adafactor(module.parameters()), unplanned.Adafactor(baseline.parameters())
    step = memplan.optimize(module, x, budget="200%", optimizer=own, max_grad_norm=0.25, cache=False)
    for _turn in range(2):
        step(x)
        baseline(x).backward()
        norm = nn.utils.clip_grad_norm_(baseline.parameters(), 0.25)
        theirs.step()
        theirs.zero_grad()
        assert step.grad_norm is not None
        assert torch.equal(step.grad_norm, norm)
    assert all(map(torch.equal, module.parameters(), baseline.parameters()))


def small_step(**options):
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    ((x, labels),) = batches((8,))
    given = {"targets": labels, "loss_fn": functional.cross_entropy, "budget": "100%", "solver": "rotor"}
    given["optimizer"] = torch.optim.SGD(list(module.parameters())[options.pop("first", 0) :], 0.1)
    return memplan.optimize(module, x, **(given | options))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_grad_norm": 0}, "max_grad_norm=0: give a number above 0; None does not clip"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm=nan"),
        ({"max_grad_norm": "1.0"}, "max_grad_norm='1.0'"),
        ({"max_grad_norm": True}, "max_grad_norm=True"),
        ({"max_grad_norm": 1.0, "optimizer": None}, "max_grad_norm goes with optimizer=.*clip_grad_norm_"),
        (
            {"max_grad_norm": 1.0, "first": 1},
            "clip_norm: 0.weight has a gradient and is none of the optimizer's",
        ),
    ],
)
def test_wrong_arguments_are_named(wrong, message) -> None:
    with pytest.raises(memplan.InputError, match=message):
        small_step(**wrong)


def test_a_plan_without_clipping_is_not_taken_for_one_with_it(tmp_path) -> None:
    """Nor another way round; another norm needs no other plan. Without clipping there is none to set."""
    steps = [small_step(cache=tmp_path, max_grad_norm=norm) for norm in (None, 1.0, 2.0, float("inf"))]
    assert len(list(tmp_path.iterdir())) == 2
    assert [step.max_grad_norm for step in steps] == [None, 1.0, 2.0, float("inf")]
    with pytest.raises(memplan.MismatchError, match="the plan clips no gradients"):
        steps[0].max_grad_norm = 1.0
    with pytest.raises(memplan.InputError, match="max_grad_norm=-1: give a number"):
        steps[1].max_grad_norm = -1
