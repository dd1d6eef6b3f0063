"""Several batches for one update, as (loss / N).backward(), clip_grad_norm_, step and zero_grad make it."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

MANY = 3
pytestmark = pytest.mark.filterwarnings("ignore:.*the sums of gradients take")
MOVED = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "joint", "time_limit": 0.5}


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Two updates, and one batch that is left; a smaller one among them."""
    torch.manual_seed(7)
    return [(torch.randn(n, 6), torch.randint(3, (n,))) for n in (48, 48, 48, 48, 20, 48, 48)]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, 0.9)


def nadam(module: nn.Module) -> torch.optim.Optimizer:
    """No plan has its updates."""
    return torch.optim.NAdam(module.parameters(), 0.01)


def planned(module: nn.Module, optimizer: Any, **options: Any) -> memplan.Step:
    x, labels = batches()[0]
    given = {"targets": labels, "loss_fn": functional.cross_entropy, "budget": "95%", "solver": "rotor"}
    given |= {"optimizer": optimizer, "accumulate": MANY, "clip_norm": 0.3, "keep": False}
    return memplan.optimize(module, x, **(given | options))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (adamw, {"clip_norm": None, "budget": "100%"}),
        (adamw, {"update": "after"}),
        (adamw, {**MOVED, "budget": "85%"}),
        (sgd, {**MOVED, "budget": "85%", "clip_norm": None}),
        (nadam, {}),
    ],
    ids=["right behind each gradient", "clipped", "clipped and moved", "moved", "without a plan"],
)
def test_several_batches_for_one_update_are_those_of_plain_pytorch(make: Any, options: Any) -> None:
    module, given = model(), batches()
    plain = copy.deepcopy(module)
    optimizer, other = make(module), make(plain)
    step = planned(module, optimizer, **options)
    rates, others = OneCycleLR(optimizer, 0.02, total_steps=8), OneCycleLR(other, 0.02, total_steps=8)
    torch.manual_seed(11)
    seen: list[Any] = []
    for x, labels in given:
        seen.append(step(x, targets=labels))
        assert step.updated or step.norm is None
        if step.updated:
            seen.append(step.norm)
            rates.step()
    assert not step.updated
    step.update()
    assert step.updated
    seen.append(step.norm)

    torch.manual_seed(11)
    expected: list[Any] = []
    for number, (x, labels) in enumerate(given, start=1):
        loss = functional.cross_entropy(plain(x), labels)
        (loss / MANY).backward()
        expected.append(loss.detach())
        if number % MANY == 0 or number == len(given):
            clipped = options.get("clip_norm", 0.3) is not None
            expected.append(nn.utils.clip_grad_norm_(plain.parameters(), 0.3) if clipped else None)
            other.step()
            other.zero_grad()
            if number % MANY == 0:
                others.step()
    step.recall()
    for mine, theirs in zip(seen, expected, strict=True):
        assert mine is theirs if theirs is None else torch.equal(mine, theirs)
    assert all(map(torch.equal, module.parameters(), plain.parameters()))


def test_a_batch_that_is_refused_adds_nothing() -> None:
    module = model()
    plain = copy.deepcopy(module)
    step, other = planned(module, sgd(module), plans=1), sgd(plain)
    whole = [(x, labels) for x, labels in batches() if len(x) == 48][:MANY]
    torch.manual_seed(11)
    for number, (x, labels) in enumerate(whole):
        step(x, targets=labels)
        if number == 0:
            with pytest.raises(memplan.MismatchError):
                step(x[:20], targets=labels[:20])
    assert step.updated
    torch.manual_seed(11)
    for x, labels in whole:
        (functional.cross_entropy(plain(x), labels) / MANY).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
    other.step()
    assert all(map(torch.equal, module.parameters(), plain.parameters()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"accumulate": 0}, "accumulate=0: it is the number of batches of an update, 1 or more"),
        ({"accumulate": 2.0}, r"accumulate=2\.0"),
        ({"accumulate": True}, "accumulate=True"),
        ({"optimizer": None, "clip_norm": None}, "accumulate goes with optimizer=.*loss / N"),
        ({"undo": True, "optimizer": nadam(model())}, "undo=True is for planned updates"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    module = model()
    with pytest.raises(memplan.InputError, match=message):
        planned(module, **({"optimizer": sgd(module)} | wrong))
