"""Loops of several processes that accumulate by themselves or by packages: as without memplan, bit by bit."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from ranks import RANKS, ranks
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.scripts

EXAMPLES = Path(__file__).parents[3] / "examples"
MANY = 2

Trained = tuple[list[float], list[Tensor]]
"""Losses, and weights and buffers."""


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3))


def by_no_sync(rank: int, *, planned: bool) -> Trained:
    """An update of two batches, two of one, one of two. Gradients are made None in the midst of a batch."""
    module, losses = model(), list[float]()
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    torch.manual_seed(7 + rank)
    lengths = (12, 12, 12, 7 if rank else 12, 12, 12)  # one rank alone plans for a second shape
    data = [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]
    x, labels = data[0]
    call: Any = lambda x, targets: functional.cross_entropy(parallel(x), targets)  # noqa: E731
    if planned:
        options: Any = {"targets": labels, "loss_fn": functional.cross_entropy, "cache": False}
        call = memplan.optimize(parallel, x, budget="100%", solver="store-all", **options)
    first = True
    for (x, labels), last in zip(data, (False, True, True, True, False, True), strict=True):
        with nullcontext() if last else parallel.no_sync():
            loss = call(x, targets=labels)
            if first:
                optimizer.zero_grad()
            (loss / MANY).backward()
        losses.append(loss.item())
        if first := last:
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            optimizer.step()
    return losses, [tensor.detach().clone() for tensor in module.state_dict().values()]


def by_example(name: str, *, planned: bool, **options: Any) -> Trained:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    trained, losses = import_module(name).train(planned, **options)
    return losses, [tensor.detach().clone() for tensor in trained.state_dict().values()]


def refused(rank: int) -> list[str]:
    said: list[str] = []
    x = torch.randn(12, 6)
    for parameters, accumulate in ((slice(None), 1), (slice(None), 2 + rank), (slice(1, None), 2)):
        parallel = DistributedDataParallel(model())
        optimizer = torch.optim.SGD(list(parallel.parameters())[parameters], 0.1)
        try:
            step = memplan.optimize(
                parallel,
                x,
                loss_fn=torch.sum,
                budget="100%",
                solver="store-all",
                cache=False,
                optimizer=optimizer,
                gradient_accumulation_steps=accumulate,
            )
            with parallel.no_sync():
                step(x)
        except memplan.MemplanError as error:
            said.append(str(error))
    return said


def in_all_ways(rank: int) -> dict[str, Any]:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(number) for name, number in own.items()})
    sys.path.insert(0, str(EXAMPLES))
    return {
        "refused": refused(rank),
        "no_sync": (by_no_sync(rank, planned=True), by_no_sync(rank, planned=False)),
        "accelerate": tuple(by_example("train_accelerate", planned=each, cpu=True) for each in (True, False)),
        "Trainer": tuple(by_example("train_trainer", planned=each, use_cpu=True) for each in (True, False)),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    results = ranks(in_all_ways, tmp_path_factory.mktemp("ranks"))
    for result in results:
        assert not isinstance(result, str), result
    return results


@pytest.mark.parametrize("way", ["no_sync", "accelerate", "Trainer"])
def test_loops_of_several_processes_accumulate_as_without_memplan(way: str, found: list[Any]) -> None:
    for result in found:
        (losses, weights), (expected, theirs) = result[way]
        assert losses == expected
        assert all(map(torch.equal, weights, theirs))
    first, second = (result[way][0] for result in found)
    assert (first[0] != second[0]) == (way != "Trainer")  # which tells the losses of all
    assert all(map(torch.equal, first[1], second[1])) == (way != "no_sync")  # whose buffers are each rank's


def test_what_ranks_can_not_do_is_refused(found: list[Any]) -> None:
    for rank, result in enumerate(found):
        other, own = 3 - rank, 2 + rank
        assert result["refused"] == [
            "the step averages gradients and updates the weights with this batch: call it outside of "
            "no_sync, or give optimize the number of batches of an update, gradient_accumulation_steps=N",
            f"rank {1 - rank} has gradient_accumulation_steps={other}, this one {own}: all ranks must "
            "update at the same batch",
            "accumulate and DistributedDataParallel: 0.weight has a gradient and is none of the optimizer's "
            "parameters: give it to the optimizer, or freeze it with requires_grad_(False)",
        ]
