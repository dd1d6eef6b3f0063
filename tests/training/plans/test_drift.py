"""A link that is half as fast as planned: training changes its transfers, then its plan, and keeps its bits.

The device is the CPU with a clock of its own: each operation sleeps, as long as it is said to take, and each
copy as long as the link needs for its bytes.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import memplan
import pytest
import torch
from memplan.devices.device.cpu import Cpu
from memplan.devices.storage import host_buffers
from memplan.graphs.generators import chain
from memplan.graphs.machine import Link, Links, Machine, Peers
from memplan.planner.simulator.clock import Queue
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.profile.profile import measure_program
from memplan.runtime.run.stopwatch import Copied, Times
from memplan.solvers import background
from memplan.training.plans import adapt, front_end, training_log
from memplan.training.plans import plan as planning
from memplan.training.plans.adapt import COUNTED_ITERATIONS
from memplan.training.plans.drift import remeasured, unevenness
from memplan.training.progress import ProgressEvent
from torch import Tensor, nn

WIDTH, SECONDS = 96, 0.002
RATE = WIDTH * WIDTH * 4 / SECONDS
"""A weight takes as long to copy as an operation takes to run."""

INPUTS = torch.randn(64, WIDTH)
ENOUGH = 7


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, foreach=False)


class Emulated:
    """rate: bytes/s of the links as they are. slower: by operation name, a factor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rate, self.slower = RATE, dict[str, float]()
        monkeypatch.setattr(
            front_end,
            "measure_program",
            lambda *given, **more: [one._replace(seconds=SECONDS) for one in measure_program(*given, **more)],
        )
        monkeypatch.setattr(Cpu, "launched", self.launched)
        monkeypatch.setattr(Cpu, "copy", self.copy)

    def launched(self, _program: Any, operation: Any, _workspace: int) -> Any:
        target = operation.call.target

        def run(*arguments: Any, **keywords: Any) -> Any:
            time.sleep(SECONDS * self.slower.get(operation.name, 1.0))
            return target(*arguments, **keywords)

        return run

    def copy(self, source: Tensor, target: Tensor) -> None:
        time.sleep(source.nbytes / self.rate)
        target.copy_(source)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(training_log, "ENOUGH", ENOUGH)
    monkeypatch.setattr(background, "LOWEST", 0)  # the tests' machine may have others at work
    return Emulated(monkeypatch)


def optimized(module: nn.Module, reported: list[ProgressEvent], **options: Any) -> Any:
    chosen = {"machine": Machine(links=Links(RATE, RATE)), "solver": "l2l", "budget": "60%", **options}
    given = {"loss_fn": loss_of, "optimizer": sgd(module), "progress": reported.append, "verify": False}
    return memplan.optimize(module, INPUTS, cache=chosen.pop("cache", False), **given, **chosen)


def taken(step: Any, turns: int) -> float:
    """The median of so many iterations, in seconds."""
    seconds: list[float] = []
    for _turn in range(turns):
        begun = time.perf_counter()
        step(INPUTS)
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def lines(reported: list[ProgressEvent]) -> list[str]:
    return [each.text for each in reported if each.phase == "train" and each.text]


def assert_plain(step: Any, module: nn.Module, turns: int) -> None:
    """Bitwise as plain PyTorch after so many turns."""
    baseline = model()
    optimizer = sgd(baseline)
    for _turn in range(turns):
        optimizer.zero_grad()
        loss_of(baseline(INPUTS)).backward()
        optimizer.step()
    step.restore_to_device()
    for own, theirs in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own, theirs)


@pytest.mark.scripts
def test_transfers_move_where_a_link_is_half_as_fast(
    emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has room for one plan alone: the next has what the first one leaves."""
    module, reported = model(), list[ProgressEvent]()
    step = optimized(module, reported, cache=tmp_path)
    planned = step.plan
    monkeypatch.setattr(host_buffers, "available_bytes", lambda: planned.figures.host_peak // 2)
    emulated.rate = RATE / 2
    before = taken(step, ENOUGH + 2)
    assert before > 1.1 * planned.figures.time
    step._executor.planner.solver = "store-all"  # which finds nothing within the budget
    while not any("transfers moved" in line for line in lines(reported)):
        step(INPUTS)
    assert step.plan.schedule is not planned.schedule
    assert step.plan.figures.peak <= planned.budget
    links = step.plan.graph.machine.links
    assert links.h2d.rate == pytest.approx(RATE / 2, rel=0.2)
    assert links.d2h.rate == pytest.approx(RATE / 2, rel=0.2)
    after = min(taken(step, 10) for _ in range(3))  # other work on the machine lasts a while
    assert after < 0.9 * before
    assert after == pytest.approx(step.plan.figures.time, rel=0.2)
    said = lines(reported)
    assert "against the plan's" in said[0]
    assert "h2d" in said[1]
    assert all(line in str(step.report()) for line in said)
    assert_plain(step, module, step.report().plans[0].iterations)
    monkeypatch.undo()
    recomputed = optimized(model(), [], cache=tmp_path)  # the next start has the schedule and the rates
    assert recomputed.plan.figures == step.plan.figures
    assert recomputed.plan.graph.machine.links == links


@pytest.mark.scripts
def test_a_plan_is_solved_again_in_the_background(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the transfers can't be moved, by a fault that is told."""
    monkeypatch.setattr(adapt, "place_prefetches", lambda *_given, **_named: {}["fault"])
    module, reported = model(), list[ProgressEvent]()
    step = optimized(module, reported, time_limit=1)
    emulated.rate = RATE / 2
    before = taken(step, ENOUGH + 2)
    object.__setattr__(step._executor.planner.options, "solver", "greedy-star")
    while not (done := [line for line in lines(reported) if line.startswith("replanned")]):
        step(INPUTS)
    assert "expected" in done[0]
    assert "transfers stay, KeyError: 'fault'" in lines(reported)[1]
    plan = step.plan
    assert simulate(plan.graph, plan.schedule, budget=plan.budget).figures == plan.figures
    assert plan.figures.time < 0.9 * before
    assert taken(step, 10) < 0.9 * before
    assert_plain(step, module, step.report().plans[0].iterations)


@pytest.mark.scripts
def test_without_adapting_it_is_told_once_and_nothing_changes(emulated: Emulated) -> None:
    module, reported = model(), list[ProgressEvent]()
    step = optimized(module, reported, replan_on_drift=False)
    schedule = step.plan.schedule
    emulated.rate = RATE / 2
    taken(step, ENOUGH + 2 + COUNTED_ITERATIONS)
    assert len(lines(reported)) == 1
    assert step.plan.schedule is schedule


def test_a_step_that_is_given_up_leaves_its_pinned_memory_before_the_next_takes_its_own() -> None:
    """With those of its parts; it has it back where the next one comes to nothing."""
    done: list[str] = []

    class Step:
        def __init__(self, name: str) -> None:
            self.cycle = SimpleNamespace(unpin=lambda: done.append(f"-{name}"), pin=lambda: done.append(name))
            self.release_graphs = lambda: None

    step, planner = Step("last"), object.__new__(planning.Planner)
    planner.parts = WeakKeyDictionary(
        {step: (Step("adding"), SimpleNamespace(cycle=None, release_graphs=lambda: None))}
    )  # pyright: ignore
    with planner.giving_up(step):  # pyright: ignore
        done.append("next")
    assert done == ["-last", "-adding", "next"]
    with pytest.raises(MemoryError), planner.giving_up(step):  # pyright: ignore
        raise MemoryError
    assert done[3:] == ["-last", "-adding", "last", "adding"]


@pytest.mark.parametrize(
    ("seconds", "link", "uneven"),
    [
        (0.5, Link(1000.0, 0.03, 400.0), 0.0),  # as planned: 10 latencies and 200 bytes
        (1.0, Link(200 / 0.7, 0.03, 400.0), 1.0),
        (0.25, Link(2000.0, 0.015, 400.0), 0.5),  # less than the latencies: these copies do not tell the rate
    ],
)
def test_a_link_is_compared_by_the_seconds_of_its_copies(seconds: float, link: Link, uneven: float) -> None:
    """Of small copies, which bytes per second of the link would call slow whatever they took."""
    machine = Machine(links=Links(d2h=Link(1000.0, 0.03, 400.0), h2d=5.0))
    graph = chain(4)
    ran = {(operation, 0): graph.seconds(operation) for operation in range(len(graph.operations))}
    times = Times(ran, {Queue.D2H: Copied(200, 10, seconds)})
    assert unevenness(graph, machine, times) == pytest.approx(uneven)
    now = remeasured(graph, machine, times).machine
    assert now is not None
    assert now.links.d2h is not None
    found = now.links.d2h
    assert (found.rate, found.latency, found.pageable) == pytest.approx(
        (link.rate, link.latency, link.pageable)
    )
    assert now.links.d2h.seconds(200.0, 10) == pytest.approx(seconds)
    assert now.links.h2d == Link(5.0)
    said = adapt._links(times, machine)
    assert said == ([f"d2h {200 / seconds:.0f} B/s, not 400 B/s"] if uneven else [])


def test_a_link_that_was_measured_by_sizes_is_slowed_at_all_of_them() -> None:
    machine = Machine(links=Links(d2h=Link(1000.0, 0.03, measured=((20, 0.1), (200, 0.4))), h2d=5.0))
    graph = chain(4)
    ran = {(operation, 0): graph.seconds(operation) for operation in range(len(graph.operations))}
    now = remeasured(graph, machine, Times(ran, {Queue.D2H: Copied(200, 10, 3.0)})).machine
    assert now is not None
    assert now.links.d2h is not None
    assert now.links.d2h.seconds(200.0, 10) == pytest.approx(3.0)
    assert now.links.d2h.seconds(200.0) == pytest.approx(3 * 0.4)


def test_the_network_between_ranks_stays_when_links_are_timed() -> None:
    peers = Peers(1000.0, 0.01, ranks=2)
    machine = Machine(links=Links(d2h=Link(1000.0), h2d=5.0, peers=peers), shared=(("d2h", "peers"),))
    graph = chain(4)
    now = remeasured(graph, machine, Times({}, {Queue.D2H: Copied(200, 1, 0.4)})).machine
    assert now is not None
    assert now.links.peers == peers
    assert now.links.d2h == Link(500.0)
    assert (now.shared, now.hierarchy.peers) == (machine.shared, peers)
