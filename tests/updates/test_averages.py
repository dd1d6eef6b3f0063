"""Moving averages of weights, in planned updates: bit by bit those of a loop."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional

DECAY = 0.9


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16)) for _ in range(3)]
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), *wide, nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in (24, 24, 24, 10)]


def planned(module: nn.Module, optimizer: Any, **options: Any) -> memplan.Step:
    x, labels = batches()[0]
    given: dict[str, Any] = {"targets": labels, "budget": "100%", "solver": "rotor", "time_limit": 0.5}
    given |= {"loss_fn": nn.CrossEntropyLoss(), "optimizer": optimizer, "ema": DECAY, "cache": False}
    return memplan.optimize(module, x, **(given | options))


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (adamw, {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "budget": "75%"}),
        (sgd, {"max_grad_norm": 0.5}),
    ],
    ids=["adamw, moved", "sgd, clipped"],
)
def test_averages_are_those_of_a_loop(make: Any, options: dict[str, Any]) -> None:
    """The second half by another step, whose optimizer has loaded the first one's states."""
    module = model()
    baseline, other = copy.deepcopy(module), copy.deepcopy(module)
    optimizer, theirs, later = make(module), make(baseline), make(other)
    step = planned(module, optimizer, **options)
    shadow = {name: p.detach().clone() for name, p in baseline.named_parameters()}
    torch.manual_seed(11)
    for x, labels in batches():
        functional.cross_entropy(baseline(x), labels).backward()
        if "max_grad_norm" in options:
            nn.utils.clip_grad_norm_(baseline.parameters(), options["max_grad_norm"])
        theirs.step()
        theirs.zero_grad()
        for name, p in baseline.named_parameters():
            shadow[name].lerp_(p.detach(), 1 - DECAY)
    torch.manual_seed(11)
    for number, (x, labels) in enumerate(batches()):
        if number == 2:
            other.load_state_dict(module.state_dict())
            later.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            drawn = torch.get_rng_state()
            step = planned(other, later, **options)
            torch.set_rng_state(drawn)
        step(x, targets=labels)
    found = step.ema_state_dict()
    assert found.keys() == baseline.state_dict().keys()
    expected = baseline.state_dict() | shadow
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert [
        name for name, p in other.named_parameters() if not torch.equal(p, baseline.get_parameter(name))
    ] == []
    assert not torch.equal(found["0.weight"], other.get_parameter("0.weight"))


def test_of_weights_with_masters_the_masters_are_averaged() -> None:
    module = model().to(torch.bfloat16)
    optimizer = adamw(module)
    x, labels = batches()[0]
    step = memplan.optimize(
        module,
        x.bfloat16(),
        targets=labels,
        loss_fn=lambda output, labels: functional.cross_entropy(output.float(), labels),
        budget="100%",
        optimizer=optimizer,
        master_weights=True,
        ema=DECAY,
        solver="store-all",
        cache=False,
    )
    weight = module.get_parameter("0.weight")
    shadow = weight.detach().float()
    for _ in range(3):
        step(x.bfloat16(), targets=labels)
        shadow.lerp_(optimizer.state[weight]["master"], 1 - DECAY)
    assert torch.equal(optimizer.state[weight]["ema"], shadow)
    assert step.ema_state_dict()["0.weight"].dtype == torch.bfloat16


def test_wrong_ones_are_refused() -> None:
    module = model()
    cases: list[tuple[nn.Module, Any, dict[str, Any], str]] = [
        (module, adamw(module), {"ema": 1}, "ema=1: give the share of the average that each update keeps"),
        (module, adamw(module), {"ema": 1.5}, "ema=1.5: give the share"),
        (module, None, {}, "ema= goes with planned updates"),
        (module, unplanned.NAdam(module.parameters()), {}, "ema= goes with planned updates"),
        (
            module.bfloat16(),
            adamw(module),
            {},
            "0.weight is torch.bfloat16, too coarse to average",
        ),
    ]
    for given, optimizer, options, line in cases:
        with pytest.raises(memplan.InputError, match=line):
            planned(given.float() if "bfloat16" not in line else given.bfloat16(), optimizer, **options)
    step = planned(module.float(), adamw(module), ema=None, solver="store-all")
    with pytest.raises(memplan.MismatchError, match="has no averages of the weights: plan anew, with ema="):
        step.ema_state_dict()
