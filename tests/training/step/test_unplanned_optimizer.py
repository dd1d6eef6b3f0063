"""Optimizers that no plan has: bit by bit plain PyTorch's, within the budget, states and all."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.machine import Links, Machine
from memplan.profiling.compare.peaks import generator_bytes, resident_bytes
from memplan.updates.optimizer_memory import counted
from optimizer_loops import STEPS, check_equal, network, state_of, step_of, trained
from optimizer_loops import batches as loop_batches
from record_muon import RecordMuon
from torch import Tensor, nn
from torch.nn import functional

TOLD = "is not in the plan: its states take"


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, arXiv:2302.06675."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for weight in (p for p in group["params"] if p.grad is not None):
                state = self.state[weight]
                if not state:
                    state["exp_avg"] = torch.zeros_like(weight)
                one, other = group["betas"]
                way = state["exp_avg"].lerp(weight.grad, 1 - one).sign_()
                weight.add_(way, alpha=-group["lr"])
                state["exp_avg"].lerp_(weight.grad, 1 - other)


def adafactor(parameters: Any) -> torch.optim.Optimizer:
    return unplanned.Adafactor(parameters, lr=0.02)


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.Linear(16, 3))


def batches(lengths: tuple[int, ...] = (64, 64, 40, 64)) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


def planned(module: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> memplan.Step:
    x, labels = batches()[0]
    given: dict[str, Any] = {"budget": "70%", "solver": "rotor", "loss_fn": functional.cross_entropy}
    with pytest.warns(UserWarning, match=TOLD):
        return memplan.optimize(module, x, targets=labels, optimizer=optimizer, **(given | options))


@pytest.mark.scripts
@pytest.mark.parametrize(("make", "moved"), [(adafactor, False), (Lion, True), (RecordMuon, True)])
def test_training_is_that_of_plain_pytorch(make: Any, moved: bool) -> None:
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, other = make(module.parameters()), make(baseline.parameters())
    rates, others = (torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (optimizer, other))
    more: dict[str, Any] = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "joint", "time_limit": 0.5}
    step = planned(module, optimizer, **(more if moved else {}))
    assert not optimizer.state
    torch.manual_seed(11)
    losses: list[Tensor] = []
    for x, labels in batches():
        losses.append(step(x, targets=labels).detach())
        rates.step()
    torch.manual_seed(11)
    for (x, labels), own in zip(batches(), losses, strict=True):
        loss = functional.cross_entropy(baseline(x), labels)
        loss.backward()
        other.step()
        other.zero_grad()
        others.step()
        assert torch.equal(loss, own)
    for mine, theirs in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.grad is None
        for name, state in other.state[theirs].items():
            assert torch.equal(torch.as_tensor(optimizer.state[mine][name]), torch.as_tensor(state)), name
    assert getattr(optimizer, "steps", 4) == 4


def test_the_peak_with_states_and_updates_is_within_the_budget() -> None:
    """Shares are of the plain peak with the states in it."""
    module = model()
    optimizer = Lion(module.parameters())
    step = planned(module, optimizer, budget="80%", verify=True)
    taken = counted(optimizer, dict(module.named_parameters()))
    weights = sum(p.nbytes for p in module.parameters())
    assert taken.states == weights
    x, labels = batches()[0]

    def train() -> None:
        for _ in range(3):
            step(x, targets=labels)

    program = step.plans[0].program
    peak = resident_bytes(program) + live_peak(train).peak_bytes - generator_bytes(program)
    assert step.plans[0].budget is not None
    budget = step.plans[0].budget + taken.states
    assert 0.7 * budget < peak <= budget


@pytest.mark.parametrize(
    "make",
    [
        adafactor,
        Lion,
        unplanned.NAdam,
        unplanned.Muon,
        RecordMuon,
        lambda p: unplanned.RMSprop(p, momentum=0.5, centered=True),
        lambda p: unplanned.Adagrad(p, foreach=True),
    ],
)
def test_what_is_counted_is_what_the_allocator_gives(make: Any) -> None:
    """Adagrad makes its states before its first step."""
    weights = [nn.Parameter(torch.randn(*shape)) for shape in ((40, 30), (30, 70))]
    there: list[torch.optim.Optimizer] = []
    made = live_peak(lambda: there.append(make(weights)))
    optimizer = there[0]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    taken = counted(optimizer, {str(number): weight for number, weight in enumerate(weights)})
    steps = [live_peak(optimizer.step) for _ in range(3)]
    states = made.left_bytes + sum(step.left_bytes for step in steps)
    first, *later = (step.peak_bytes for step in steps)
    peak = max(made.left_bytes + first, states + max(later))
    assert taken.states == states
    assert peak <= taken.peak <= peak + 300


class Reading(Lion):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(torch.from_numpy(weight.grad.numpy()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (torch.optim.LBFGS, {}, "LBFGS calls the model itself, in a closure"),
        (Reading, {}, "what Reading takes can't be counted.*plan without optimizer="),
        (
            Lion,
            {"rollback_on_error": True},
            "rollback_on_error=True needs planned updates: Lion steps after the plan",
        ),
        (Lion, {"budget": "40kB"}, "no schedule within 40,000 B"),
        (
            lambda p: unplanned.Adadelta(p, foreach=True),
            {"budget": "100kB"},
            "with weights, gradients and states the step of Adadelta needs",
        ),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(make: Any, options: dict[str, Any], line: str) -> None:
    module = model()
    x, labels = batches((16,))[0]
    given: dict[str, Any] = {"budget": "100%", "solver": "rotor", "loss_fn": functional.cross_entropy}
    with pytest.raises(memplan.MemplanError, match=line) as refused:
        memplan.optimize(module, x, targets=labels, optimizer=make(module.parameters()), **(given | options))
    assert "\n" not in str(refused.value)


@pytest.mark.scripts
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_the_records_muon_clipped_and_accumulated(every: int, compiled: bool) -> None:
    """One layer is not used: its gradients are made by the step."""
    own, other = (nn.Sequential(*network(width=16).children(), nn.Linear(1, 2)) for _ in range(2))
    for module in (own, other):
        module.forward = lambda x, layers=module[:-1]: layers(x)  # pyright: ignore
    eager, optimizer = (RecordMuon(module.parameters(), compiled=compiled) for module in (own, other))
    trained(own, eager, 0.01, every)
    given: dict[str, Any] = {"max_grad_norm": 0.01, "gradient_accumulation_steps": every}
    with pytest.warns(UserWarning, match="RecordMuon is not in the plan"):
        step = step_of(other, optimizer, **given)
    for batch in loop_batches(other, STEPS * every):
        step(batch)
    check_equal(state_of(own, eager), state_of(other, optimizer))


def test_a_checkpoint_has_its_states(tmp_path: Any) -> None:
    x, labels = batches()[0]
    module = model()
    step = planned(module, Lion(module.parameters()))
    step(x, targets=labels)
    step.save(tmp_path)
    other = model()
    recomputed = planned(other, Lion(other.parameters()))
    recomputed.load(tmp_path)
    for each in (step, recomputed):
        torch.manual_seed(2)
        each(x, targets=labels)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))
