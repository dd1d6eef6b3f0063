"""float16 with GradScaler: bit by bit a loop of PyTorch, through overflow, growth and clipping."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

HALF = torch.float16
Batches = list[tuple[Tensor, Tensor]]


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16))
    return nn.Sequential(nn.Linear(6, 16), wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches(count: int = 12) -> Batches:
    """Of two shapes."""
    torch.manual_seed(7)
    rows = [20 if number % 5 == 2 else 48 for number in range(count)]
    return [(torch.randn(n, 6), torch.randint(3, (n,))) for n in rows]


def scaler(first: float = 2.0**20, **options: Any) -> torch.amp.GradScaler:
    """Overflows a few times, grows every other iteration, by a number that is no power of two."""
    given: dict[str, Any] = {"growth_factor": 1.7, "growth_interval": 2}
    return torch.amp.GradScaler("cpu", init_scale=first, **(given | options))


def planned(module: nn.Module, **options: Any) -> memplan.Step:
    x, labels = batches(1)[0]
    given: dict[str, Any] = {"budget": "95%", "solver": "rotor", "autocast": HALF, "keep": False}
    return memplan.optimize(module, x, targets=labels, loss_fn=functional.cross_entropy, **(given | options))


def loop(
    module: nn.Module, optimizer: Any, scale: torch.amp.GradScaler, norm: float | None, step: Any = None
) -> list[Any]:
    """What it sees: losses, norms, scales. step: in the place of forward and loss."""
    rates = OneCycleLR(optimizer, 0.02, total_steps=20)
    torch.manual_seed(11)
    seen: list[Any] = []
    for x, labels in batches():
        if step is None:
            with torch.autocast("cpu", dtype=HALF):
                loss = functional.cross_entropy(module(x), labels)
        else:
            loss = step(x, targets=labels)
        scale.scale(loss).backward()
        if norm is not None:
            scale.unscale_(optimizer)
            seen.append(nn.utils.clip_grad_norm_(module.parameters(), norm))
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        rates.step()
        seen += [loss.detach(), scale.get_scale()]
    return seen


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(torch.as_tensor(a).nan_to_num(7.0), torch.as_tensor(b).nan_to_num(7.0))
        for a, b in zip(ours, theirs, strict=True)
    )


def assert_same(module: nn.Module, optimizer: Any, plain: nn.Module, other: Any) -> None:
    for (name, ours), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        row, states = other.state[theirs], optimizer.state[ours]
        assert row.keys() == states.keys()
        assert all(torch.equal(row[state], states[state]) for state in row), name


def assert_falls_and_grows(scales: list[float]) -> None:
    changes = [after / before for before, after in pairwise((2.0**20, *scales))]
    assert changes[0] == 0.5
    assert any(change > 1 for change in changes)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("norm", [None, 0.3])
def test_a_loop_around_a_step_scales_as_ever(norm: float | None) -> None:
    module = model()
    plain = copy.deepcopy(module)
    optimizer, other = adamw(module), adamw(plain)
    own, scales = scaler(), scaler()
    expected = loop(plain, other, scales, norm)
    assert_falls_and_grows(expected[2 if norm else 1 :: 3 if norm else 2])
    step = planned(module, scaler=own)
    assert own.state_dict() == scaler().state_dict()
    assert same(loop(module, optimizer, own, norm, step), expected)
    assert own.state_dict() == scales.state_dict()
    assert len(step.plans) == 2
    assert_same(module, optimizer, plain, other)


def gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()
    return found


def test_a_loss_scaled_otherwise_than_its_iteration() -> None:
    """Less is a division behind the plan, as of a loss that an update's batches share; more is refused."""
    module, own = model().eval(), scaler(2.0**10)
    step = planned(module, scaler=own)
    x, labels = batches(1)[0]
    own.scale(step(x, targets=labels)).backward()
    whole = gradients(module)
    own.scale(step(x, targets=labels) / 4).backward()
    assert all(torch.equal(a, b / 4) for a, b in zip(gradients(module), whole, strict=True))
    step(x, targets=labels).backward()
    assert all(torch.equal(a, b / 2**10) for a, b in zip(gradients(module), whole, strict=True))
    loss = step(x, targets=labels)
    own.update(2.0**12)
    with pytest.raises(memplan.MemplanError, match=r"times 4096: .*float16, for a loss times 1024, where"):
        own.scale(loss).backward()


def test_evaluation_and_buckets_know_no_scale() -> None:
    module = model()
    step = planned(
        module, scaler=scaler(2.0**10), outputs=True, pad={"0": (0.0, 0), "targets": (-100, 0)}, buckets=64
    )
    x, labels = batches(1)[0]
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        expected = module.eval()(x)
        module.train()
    loss, output = step.evaluate(x, targets=labels)
    assert torch.equal(output[:48], expected)
    assert loss < 2


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, object])
def test_what_is_no_scaler_is_refused(kind: Any) -> None:
    with pytest.raises(memplan.InputError, match=r"scaler is a .*: give a torch.amp.GradScaler"):
        planned(model(), scaler=kind if kind is torch.amp.GradScaler else kind())


def test_one_that_is_not_enabled_is_none() -> None:
    module = model().eval()
    x, labels = batches(1)[0]
    planned(module, scaler=scaler(enabled=False))(x, targets=labels).backward()
    found = gradients(module)
    with torch.autocast("cpu", dtype=HALF):
        functional.cross_entropy(module(x), labels).backward()
    assert same(found, gradients(module))
