"""Drifting times on two ranks: the slow one is named on both, and plans change on both or on none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import memplan
import pytest
import torch
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.graphs.errors import MemplanError
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.planner.simulator.clock import Queue
from memplan.runtime.run.stopwatch import Copied, Stopwatch, Times
from memplan.training.plans import adapt, adapt_on_ranks
from memplan.training.plans.adapt_on_ranks import EVERY, AveragingAdapter, name_slow
from memplan.training.plans.drift import slowdowns, slowest
from memplan.training.plans.plan import Planner
from memplan.training.plans.training_log import TrainingLog
from memplan.training.progress import ProgressEvent
from ranks import RANKS, ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

DDP, FSDP = "DistributedDataParallel", "FSDP2"
ITERATIONS, NO_ROOM = 13, "no room, by choice"
SLOW = "rank 1 of 2 is slower than planned: operations 2 times the seconds"


class Ending(NamedTuple):
    """One rank's training. changed: iterations before which it got another plan."""

    said: list[str]
    changed: list[int]
    found: list[Tensor]
    known: list[Tensor]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.Tanh())))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, foreach=False)


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def batches(rank: int) -> list[Tensor]:
    torch.manual_seed(1 + rank)
    return [torch.randn(64, 32) for _ in range(ITERATIONS)]


def values(module: nn.Module) -> list[Tensor]:
    return [local_tensor(each.detach()).clone() for each in module.parameters()]


def eagerly(way: str, rank: int) -> list[Tensor]:
    module = called = model()
    if way == FSDP:
        fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    else:
        called = DistributedDataParallel(module)
    optimizer = sgd(module)
    for x in batches(rank):
        optimizer.zero_grad()
        loss_of(called(x)).backward()
        optimizer.step()
    return values(module)


def train(rank: int, way: str) -> Ending:
    """Train, with operations that take twice as long on rank 1, which later has no room for another plan."""
    known, module, said = eagerly(way, rank), model(), list[str]()

    def tell(event: ProgressEvent) -> None:
        if event.phase == "train" and event.text:
            said.append(event.text)

    given: dict[str, Any] = {"shard": True} if way == FSDP else {}
    step: Any = memplan.optimize(
        module if way == FSDP else DistributedDataParallel(module),
        batches(rank)[0],
        loss_fn=loss_of,
        optimizer=sgd(module),
        budget="90%",
        machine=Machine(host_capacity=2**30, links=Links(1e9, 1e9)),
        solver="joint",
        time_limit=0.3,
        cache=False,
        verify=False,
        progress=tell,
        **given,
    )
    graph, placed, changed, last = step.plan.graph, Planner._placed, list[int](), step._executor.plan
    by_plan = {
        (n, 0): graph.seconds(n) for n in range(len(graph.operations)) if n not in graph.operations.comm
    }

    def times(_watch: Stopwatch) -> Times:
        return Times({way: (1.0 + rank) * seconds for way, seconds in by_plan.items()}, {})

    def drift(_book: TrainingLog, _step: Any) -> tuple[float, float] | None:
        return (2.0, 1.0) if rank else None

    def place(*given: Any) -> Any:
        made = placed(*given)
        if rank and changed:
            raise MemplanError(NO_ROOM)
        return made

    with (
        patch.object(adapt_on_ranks, "EVERY", 2),
        patch.object(adapt, "WORTH", float("inf")),
        patch.object(adapt, "_moved", lambda plan, _machine, _seconds: plan),
        patch.object(Stopwatch, "times", times),
        patch.object(TrainingLog, "drift", drift),
        patch.object(Planner, "_placed", place),
    ):
        for turn, x in enumerate(batches(rank)):
            step(x)
            if step._executor.plan is not last:
                changed.append(turn)
                last = step._executor.plan
    step.restore_to_device()
    return Ending(said, changed, values(module), known)


@pytest.mark.parametrize("way", [FSDP, pytest.param(DDP, marks=pytest.mark.scripts)])
def test_ranks_name_the_slow_one_and_change_their_plans_at_one_iteration(way: str, tmp_path: Path) -> None:
    found = ranks(train, tmp_path, way)
    for rank, each in enumerate(found):
        assert isinstance(each, Ending), each
        assert all(map(torch.equal, each.found, each.known))
        assert each.said.count(SLOW) == 1
        drift = "iterations take 2 s" if rank else "iterations of rank 1 of 2 take +100% against its plan"
        assert drift in each.said[0]
        assert "transfers moved" in each.said[2]
    first, second = found
    both = [any(NO_ROOM in line for line in each.said) for each in found]
    if way == FSDP:  # one plan: without room on one rank it stays on both
        assert first.changed == second.changed
        assert len(first.changed) == 1
        assert both == [True, True]
    else:
        assert first.changed[0] == second.changed[0]
        assert (len(first.changed), len(second.changed)) == (2, 1)
        assert both == [False, True]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [[1.0, 1.0, 1.0], [2.04, 1.0, 3.0]],
            "b is slower than planned: operations 2, d2h 3 times the seconds",
        ),
        (
            [[1.5, 1.0, 1.0], [1.2, 1.0, 1.0]],
            "a is slower than planned: operations 1.5 times the seconds; so is another, less",
        ),
        ([[1.05, 1.0, 0.5], [0.7, 1.0, 1.0]], "no rank's operations or copies are slower than planned"),
    ],
)
def test_the_slowest_rank_is_named_with_what_is_slow_there(
    rows: list[list[float]], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapt_on_ranks, "SLOWED", ("operations", "updates on the CPU", "d2h"))
    assert name_slow(["a", "b"], rows).startswith(line)


def test_times_of_several_ranks_are_the_slowest_ones() -> None:
    one = Times({(0, 0): 1.0, (1, 0): 4.0}, {Queue.D2H: Copied(8, 1, 1.0)})
    other = Times({(0, 0): 2.0, (1, 0): 3.0}, {Queue.D2H: Copied(8, 1, 5.0), Queue.H2D: Copied(4, 1, 1.0)})
    found = slowest([one, other])
    assert found.seconds == {(0, 0): 2.0, (1, 0): 4.0}
    assert found.copied == {Queue.D2H: Copied(8, 1, 5.0), Queue.H2D: Copied(4, 1, 1.0)}


def test_slowdowns_are_of_each_processor_and_link() -> None:
    graph, machine = chain(4), Machine(links=Links(100.0, 50.0))
    ran = {(n, 0): 3 * graph.seconds(n) for n in range(len(graph.operations))}
    times = Times(ran, {Queue.H2D: Copied(100, 1, 4.0)})
    assert slowdowns(graph, machine, times) == pytest.approx([3.0, 1.0, 1.0, 2.0, 1.0, 1.0])
    assert slowdowns(graph, None, times) == pytest.approx([3.0, *[1.0] * 5])
    assert slowdowns(graph, machine, None) == [1.0] * 6


def test_ranks_with_plans_of_their_own_compare_once_per_so_many_averages() -> None:
    """Neither calls without averages nor those that are made once more count, and no search of one rank."""
    asked, processes = list[int](), SimpleNamespace(size=2, rounds=0)

    def numbers(*_mine: float) -> list[list[float]]:
        asked.append(processes.rounds)
        return [[0.0, 1.0], [0.0, 1.0]]

    class Step:
        pass

    processes.numbers = numbers
    planner: Any = SimpleNamespace(book=SimpleNamespace(drift=lambda _step: None))
    adapter, step, iteration = AveragingAdapter(planner, processes, on=True), Step(), object()  # pyright: ignore
    adapter._cases[step] = adapt.Case(solving=SimpleNamespace(ended=SimpleNamespace(is_set=lambda: False)))  # pyright: ignore
    for rounds in range(2 * EVERY + 5):
        processes.rounds = rounds
        for _call in range(3):
            assert adapter.before(step, iteration) is step  # pyright: ignore
    assert asked == [EVERY, 2 * EVERY]
