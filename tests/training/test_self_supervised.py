"""DINO, BYOL, SwAV and MoCo under DistributedDataParallel.

Each is planned bit by bit, or refused once with a way out that works: what communicates is outside of
the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from ranks import ranks
from self_supervised import BYOL, DINO, ROWS, MoCo, SwavModel, SwavWhole, backbone, crops, swav_loss
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.scripts

STEPS = 4
IN_DDP = (
    "collectives of the module's own code are not planned in DistributedDataParallel: call it after the "
    "step, on step.output (return_outputs=True); or, if the loss needs its result, plan the network alone, "
    "memplan.optimize_module(DistributedDataParallel(network), x), and compute the loss outside"
)
PLAIN: dict[str, Any] = {"budget": "100%", "cache": False, "solver": "store-all", "verify": False}

Trained = list[Tensor]


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for each in module.parameters() if each.requires_grad], lr=0.01)


def trained(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], Any],
    after: Callable[[], None],
) -> Trained:
    """Train and return losses, weights and buffers. loss_of: of an iteration; None if it has been updated."""
    losses = list[Tensor]()
    for number in range(STEPS):
        loss, updated = loss_of(number)
        if not updated:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after()
        losses.append(loss.detach())
    return [*losses, *(each.detach().clone() for each in module.state_dict().values())]


def equal(eager: Trained, planned: Trained) -> list[bool]:
    return [torch.equal(one, other) for one, other in zip(eager, planned, strict=True)]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(memplan.InputError) as refused:
        call()
    return str(refused.value)


# ── BYOL ────────────────────────────────────────────────────────────────────────────────────────────


def byol(rank: int, planned: bool, in_forward: bool, updates: bool) -> Trained:
    torch.manual_seed(0)
    learner = BYOL(in_forward=in_forward)
    model: Any = DistributedDataParallel(learner, find_unused_parameters=True)
    optimizer = adam(learner)
    if planned:
        options: dict[str, Any] = PLAIN | {"optimizer": optimizer} if updates else PLAIN
        model = memplan.optimize(model, (*crops(rank, 0, (4, 4)),), **options)
    after = (lambda: None) if in_forward else learner.update_moving_average
    return trained(
        learner,
        optimizer,
        lambda number: (model(*crops(rank, number, (4, 4))), planned and updates),
        after,
    )


def byol_twice(rank: int, in_forward: bool, updates: bool) -> list[bool]:
    return equal(*(byol(rank, planned, in_forward, updates) for planned in (False, True)))


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("in_forward", [False, True])
def test_byol_trains_bit_by_bit(tmp_path: Path, in_forward: bool, updates: bool) -> None:
    """The momentum encoder moves in the loop, or in forward, which has hooks too."""
    for found in ranks(byol_twice, tmp_path, in_forward, updates):
        assert isinstance(found, list), found
        assert all(found), found


# ── DINO ────────────────────────────────────────────────────────────────────────────────────────────


def dino(rank: int, way: str) -> Trained:
    """Train as main_dino.py does; by a way out of the refusal; or one module with all in it."""
    torch.manual_seed(0)
    own = DINO(alone=way.startswith("after"))
    student: Any = DistributedDataParallel(own.student)
    step: Any = DistributedDataParallel(own)
    optimizer = adam(own)
    if way == "module":
        student = memplan.optimize_module(student, (crops(rank, 0),), budget="100%", cache=False)
    elif way.startswith("after"):
        updates = way == "after, with updates"
        options: dict[str, Any] = PLAIN | {"optimizer": optimizer} if updates else PLAIN
        step = memplan.optimize(step, {"images": crops(rank, 0)}, return_outputs=True, **options)

    def loss_of(number: int) -> tuple[Any, bool]:
        images = crops(rank, number)
        if not way.startswith("after"):
            with torch.no_grad():
                teacher_output = own.teacher(images[:2])
            return own.loss(student(images), teacher_output, 0), False
        loss = step(images=images)
        own.loss.update_center(step.output["teacher_output"])
        return loss, way == "after, with updates"

    return trained(own, optimizer, loss_of, own.update_teacher)


def dino_twice(rank: int, way: str) -> tuple[str, list[bool]]:
    whole = DistributedDataParallel(DINO())
    line = refusal(lambda: memplan.optimize(whole, {"images": crops(rank, 0)}, **PLAIN))
    return line, equal(*(dino(rank, each) for each in ("eager", way)))


@pytest.mark.parametrize("way", ["after", "after, with updates", "module"])
def test_dino_is_refused_once_with_ways_out(tmp_path: Path, way: str) -> None:
    for found in ranks(dino_twice, tmp_path, way):
        assert not isinstance(found, str), found
        line, same = found
        assert line.endswith(f"calls torch.distributed.all_reduce, and {IN_DDP}")
        assert all(same), same


# ── SwAV ────────────────────────────────────────────────────────────────────────────────────────────


def swav(rank: int, planned: bool, queued: bool) -> Trained:
    """Train as main_swav.py does, with the network planned or not: all else is the same."""
    torch.manual_seed(0)
    own = SwavModel()
    model: Any = DistributedDataParallel(own)
    if planned:
        model = memplan.optimize_module(model, (crops(rank, 0),), budget="100%", cache=False)
    queue = torch.zeros(2, 2 * ROWS, 6) if queued else None
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)

    def loss_of(number: int) -> tuple[Any, bool]:
        with torch.no_grad():
            weight = own.prototypes.weight.data.clone()
            own.prototypes.weight.copy_(nn.functional.normalize(weight, dim=1, p=2))
        embedding, output = model(crops(rank, number))
        return swav_loss(own, embedding, output, queue, ROWS), False

    return trained(own, optimizer, loss_of, lambda: None)


def swav_twice(rank: int, queued: bool) -> tuple[str, list[bool]]:
    whole = DistributedDataParallel(SwavWhole())
    line = refusal(lambda: memplan.optimize(whole, {"images": crops(rank, 0)}, **PLAIN))
    return line, equal(*(swav(rank, planned, queued) for planned in (False, True)))


@pytest.mark.parametrize("queued", [False, True])
def test_swav_is_refused_once_with_a_way_out(tmp_path: Path, queued: bool) -> None:
    """The loss needs what Sinkhorn's iterations all-reduce. Buffers are rank 0's, as by eager PyTorch."""
    for found in ranks(swav_twice, tmp_path, queued):
        assert not isinstance(found, str), found
        line, same = found
        assert line.endswith(f"calls torch.distributed.all_reduce, and {IN_DDP}")
        assert all(same), same


# ── MoCo ────────────────────────────────────────────────────────────────────────────────────────────


def moco(rank: int, planned: bool) -> Trained:
    torch.manual_seed(0)
    own = MoCo()
    model: Any = DistributedDataParallel(own)
    encoder: Any = own.encoder_q
    if planned:
        query = DistributedDataParallel(own.encoder_q)
        encoder = memplan.optimize_module(query, crops(rank, 0)[0], budget="100%", cache=False)
    optimizer = adam(own)

    def loss_of(number: int) -> tuple[Any, bool]:
        im_q, im_k, *_others = crops(rank, number)
        logits, labels = own.logits(encoder(im_q), own.keys(im_k)) if planned else model(im_q, im_k)
        return functional.cross_entropy(logits, labels), False

    return trained(own, optimizer, loss_of, lambda: None)


def moco_twice(rank: int) -> tuple[list[str], list[bool]]:
    """Return the refusals, and what is equal.

    Statistics of the key encoder's batch norm are rank 0's by eager PyTorch, each rank's own in the way out.
    """
    whole, images = DistributedDataParallel(MoCo()), (*crops(rank, 0)[:2],)
    lines = [refusal(lambda: memplan.optimize_module(whole, images, budget="100%", cache=False))]
    eager, planned = (moco(rank, planned) for planned in (False, True))
    names = [*(str(number) for number in range(STEPS)), *MoCo().state_dict()]
    same = equal(eager, planned)
    own = [name.startswith("encoder_k.") and "running" in name for name in names]
    return lines, [each for each, differs in zip(same, own, strict=True) if not (differs and rank)]


def test_moco_is_refused_once_with_a_way_out(tmp_path: Path) -> None:
    for found in ranks(moco_twice, tmp_path):
        assert not isinstance(found, str), found
        (line,), same = found
        assert "self_supervised.py" in line
        assert (
            "calls torch.distributed.all_gather, and collectives of a module's own code are not planned in a "
            "larger graph: plan the network in it that does not communicate"
        ) in line
        assert all(same), same


# ── a planned module in DistributedDataParallel ─────────────────────────────────────────────────────


def half(rank: int, planned: bool, options: dict[str, Any]) -> Trained:
    """Train with two batches an update, the first without averages."""
    torch.manual_seed(0)
    own = nn.Sequential(backbone(), nn.BatchNorm1d(12), nn.Linear(12, 3))
    parallel = DistributedDataParallel(own, **options)
    model: Any = parallel
    if planned:
        model = memplan.optimize_module(parallel, crops(rank, 0)[0], budget="100%", cache=False)
    optimizer = adam(own)

    def loss_of(number: int) -> tuple[Any, bool]:
        optimizer.zero_grad()
        loss = torch.zeros(())
        for place, images in enumerate(crops(rank, number)[:2]):
            with nullcontext() if place else parallel.no_sync():
                part = model(images).square().mean()
                part.backward()
                loss = loss + part.detach()
        optimizer.step()
        with torch.no_grad():
            return loss + model(crops(rank, number)[2]).mean(), True

    return trained(own, optimizer, loss_of, lambda: None)


def half_twice(rank: int, options: dict[str, Any]) -> tuple[str, str, list[bool]]:
    moved, static = (DistributedDataParallel(backbone(), static_graph=each) for each in (False, True))
    image = crops(rank, 0)[0]
    machine = refusal(lambda: memplan.optimize_module(moved, image, budget="100%", machine="rtx4090"))
    graph = refusal(lambda: memplan.optimize_module(static, image, budget="100%"))
    return machine, graph, equal(*(half(rank, planned, options) for planned in (False, True)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    ],
)
def test_a_planned_module_averages_as_distributed_data_parallel_does(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    for found in ranks(half_twice, tmp_path, options):
        assert not isinstance(found, str), found
        machine, graph, same = found
        assert machine.startswith("machine= does not go with a DistributedDataParallel in a larger graph")
        assert graph.startswith("DistributedDataParallel's static_graph=True does not average")
        assert all(same), same
