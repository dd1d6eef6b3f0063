"""`allow=`: plans without a technique train bitwise as eager PyTorch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.schedule.schedule import Schedule, Verb
from torch import Tensor, nn

MACHINE = Machine(links=Links(1e10, 1e10, 1e10, 1e10))

X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))

SMALL_HOST = Machine(host_capacity=40_000, links=Links(1e10, 1e10, 1e10, 1e10))


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(5)]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def planned(module: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    given = {
        "budget": "60%",
        "optimizer": optimizer,
        "machine": MACHINE,
        "time_limit": 3.0,
        "loss_fn": loss_of,
        "verify": False,
    }
    return memplan.optimize(module, X, **{**given, **options})


def techniques_of(graph: Graph, schedule: Schedule) -> set[str]:
    runs, moves = schedule.verbs == Verb.COMPUTE, schedule.verbs >= Verb.OFFLOAD
    targets, wheres = schedule.targets[runs].tolist(), schedule.wheres[runs].tolist()
    found = {
        "recompute": len(np.unique(targets)) < len(targets),
        "offload": bool(moves.any()) or bool(schedule.initial.named),
        "disk": bool((schedule.wheres[moves] >= Memory.DISK).any()) or bool(schedule.initial.disk),
        "host-updates": any(map(graph.on_host, targets, wheres)),
    }
    return {name for name, used in found.items() if used}


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("allow", "machine", "used"),
    [
        ("recompute", MACHINE, {"recompute"}),
        ("offload", MACHINE, {"offload"}),
        (("offload", "host-updates"), MACHINE, {"offload", "host-updates"}),
        (("recompute", "offload"), SMALL_HOST, {"recompute", "offload"}),
    ],
    ids=["recompute", "offload", "host-updates", "no disk"],
)
def test_a_plan_of_some_techniques_trains_bitwise(
    allow: str | tuple[str, ...], machine: Machine, used: set[str]
) -> None:
    module, other = model(), model()
    step = planned(module, allow=allow, machine=machine)
    found = techniques_of(step.plan.graph, step.plan.schedule)
    assert found
    assert found <= used
    optimizer = torch.optim.AdamW(other.parameters(), 0.01)
    torch.manual_seed(3)
    losses = [step(X) for _ in range(3)]
    torch.manual_seed(3)
    for loss in losses:
        optimizer.zero_grad()
        wanted = loss_of(other(X))
        wanted.backward()
        optimizer.step()
        assert torch.equal(loss, wanted.detach())
    for name, weight in other.state_dict().items():
        assert torch.equal(module.state_dict()[name], weight), name


def test_a_cached_plan_serves_the_same_techniques_alone(tmp_path: Path) -> None:
    options = {"machine": None, "solver": "rotor", "cache": tmp_path}
    free = planned(model(), **options)
    assert techniques_of(free.plan.graph, free.plan.schedule) == {"recompute"}
    with pytest.raises(memplan.MemplanError, match="allow= leaves out recompute"):
        planned(model(), **options, allow="offload")


@pytest.mark.scripts
def test_nothing_that_is_not_allowed_is_advised() -> None:
    with pytest.raises(memplan.InfeasibleError) as caught:
        planned(model(), machine=None, budget=1000, solver="rotor", optimizer=None, allow=("recompute",))
    assert "machine=" not in str(caught.value)


@pytest.mark.parametrize(
    ("allow", "line"),
    [
        ("ofload", "allow='ofload': 'ofload' is not one of .*, did you mean 'offload'"),
        (("recompute", "disk"), r"allow=\('recompute', 'disk'\): 'disk' without 'offload'"),
        (3, "allow=3: give names, like"),
    ],
)
def test_other_words_are_refused(allow: Any, line: str) -> None:
    with pytest.raises(memplan.InputError, match=line):
        planned(model(), allow=allow)
