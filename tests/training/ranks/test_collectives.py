"""Modules whose own code communicates: planned on all ranks, with the bits of eager PyTorch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import memplan
import pytest
import torch
import torch.distributed._functional_collectives as functional
from communicating_models import MESHES, WIDE, Mlps, batch, make
from memplan.devices.calls.collectives import Collective, groups_of, is_collective
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.devices.storage.offloaded import hold_of
from memplan.graphs.graph import Kind
from memplan.graphs.machine import Link, Links, Machine, Memory
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.model.accumulated import SUM
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.training.checkpoints import checkpoint
from not_none import not_none
from ranks import RANKS, ranks
from sharded_training import COUNT, adamw, error, whole
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import _StridedShard

pytestmark = pytest.mark.scripts

STEPS = 3
MOST = 0.01
"""Norm to which gradients are clipped."""
Trained = tuple[nn.Module, Any, list[Tensor]]
"""A module, its optimizer and its losses."""

HOST = Machine(host_capacity=2**30, links=Links(Link(1e9, 1e-6), Link(1e9, 1e-6)))
KINDS = ["tensor", "simple_fsdp", "plain", "sequence", "llama"]


def planned(module: nn.Module, optimizer: Any, kind: str, rank: int, budget: str, **options: Any) -> Any:
    quick: dict[str, Any] = {"time_limit": 4, "cache": False}
    first = batch(kind, rank, 0)
    return memplan.optimize(module, first, budget=budget, optimizer=optimizer, **{**quick, **options})


def loss_of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.loss


def clip_eagerly(module: nn.Module) -> Tensor:
    """Clip gradients that are placed as their weights; ordinary ones as replicated DTensors, if there are
    DTensors: PyTorch does not take both.
    """
    weights = [each for each in module.parameters() if each.grad is not None]
    mesh = next((each.device_mesh for each in weights if isinstance(each, DTensor)), None)
    before = dict[int, nn.Parameter]()
    for n, weight in enumerate(weights):
        gradient = not_none(weight.grad)
        if isinstance(weight, DTensor):
            weight.grad = cast("Any", gradient).redistribute(placements=weight.placements)
        elif mesh is not None:
            placed = [Replicate()] * mesh.ndim
            before[n], weights[n] = weight, nn.Parameter(DTensor.from_local(weight.detach(), mesh, placed))
            weights[n].grad = DTensor.from_local(gradient, mesh, placed)
    norm: Any = nn.utils.clip_grad_norm_(weights, MOST)
    for n, weight in before.items():
        weight.grad = cast("Any", weights[n].grad).to_local()
    return whole(norm)


def trained_eagerly(kind: str, rank: int, every: int = 1, *, norms: list[Tensor] | None = None) -> Trained:
    """Train by eager PyTorch. every: batches per update. norms: where those of gradients go if it clips."""
    module = make(kind)
    optimizer, losses = adamw(module), list[Tensor]()
    for step in range(STEPS * every):
        loss = loss_of(module(**batch(kind, rank, step)))
        (loss / every if every > 1 else loss).backward()
        losses.append(loss.detach())
        if (step + 1) % every == 0:
            if norms is not None:
                norms.append(clip_eagerly(module))
            optimizer.step()
            optimizer.zero_grad()
    return module, optimizer, losses


def differences(known: Trained, other: Trained) -> dict[Any, float]:
    """Return by name what differs of losses, weights and states."""
    found: dict[Any, float] = {n: error(*each) for n, each in enumerate(zip(known[2], other[2], strict=True))}
    weights, states = other[0].state_dict(), other[1].state_dict()["state"]
    found |= {name: error(each, weights[name]) for name, each in known[0].state_dict().items()}
    for number, row in known[1].state_dict()["state"].items():
        assert row.keys() == states[number].keys() - {SUM}
        found |= {f"{number}.{name}": error(each, states[number][name]) for name, each in row.items()}
        for name, each in row.items():
            assert type(each) is type(states[number][name])
    return {name: each for name, each in found.items() if each}


def own_bytes(tensors: Any) -> int:
    return sum((x.to_local() if isinstance(x, DTensor) else x).nbytes for x in tensors)


def both(rank: int, kind: str, budget: str) -> dict[str, Any]:
    """Train by eager PyTorch and by a plan; return what differs."""
    known = trained_eagerly(kind, rank)
    module = make(kind)
    optimizer = adamw(module)
    step = planned(module, optimizer, kind, rank, budget)
    batches, losses = [batch(kind, rank, number) for number in range(STEPS)], list[Tensor]()
    counted = live_peak(lambda: losses.extend(step(**each).detach() for each in batches))
    given = own_bytes((*module.parameters(), *module.buffers(), *batches[0].values()))
    outside = COUNT * len(optimizer.state) + own_bytes(losses)
    places = [n for n, each in enumerate(step.plans[0].program.operations) if is_collective(each.call)]
    return {
        "differences": differences(known, (module, optimizer, losses)),
        "peak": counted.peak_bytes + given - outside,
        "planned": step.plan.figures.peak,
        "collectives": len(places),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_eager_pytorch_bit_by_bit(tmp_path: Path, kind: str) -> None:
    """At 60 % of the baseline's peak; the peak of live bytes is the planned one or less."""
    found = ranks(both, tmp_path, kind, "60%")
    for one in found:
        assert not isinstance(one, str), one
        assert one["differences"] == {}
        assert one["peak"] <= one["planned"]
        assert one["collectives"] > 0
    assert found[0]["planned"] == found[1]["planned"]


def with_host(rank: int, kind: str, budget: str) -> dict[str, Any]:
    """Train by eager PyTorch, and by a plan that may use the host; return what differs."""
    known, module = trained_eagerly(kind, rank), make(kind)
    optimizer, losses = adamw(module), list[Tensor]()
    step = planned(module, optimizer, kind, rank, budget, machine=HOST)
    batches = [batch(kind, rank, number) for number in range(STEPS)]
    counted = live_peak(lambda: losses.extend(step(**each).detach() for each in batches))
    locals_ = [*map(local_tensor, (*module.parameters(), *module.buffers()))]
    there = own_bytes((*(each for each in locals_ if hold_of(each) is None), *batches[0].values()))
    outside = COUNT * len(optimizer.state) + own_bytes(losses)
    graph, schedule = step.plans[0].graph, step.plans[0].schedule
    moved = {graph.tensors.name[x] for x in schedule.targets[schedule.verbs == Verb.PREFETCH].tolist()}
    return {
        "peak": counted.peak_bytes + there - outside,
        "planned": step.plan.figures.peak,
        "weights": moved & dict(module.named_parameters()).keys(),
        "states": {
            x for x in schedule.initial.on(Memory.HOST) if graph.tensors.kind[x] == Kind.OPTIMIZER_STATE
        },
        "differences": differences(known, (module, optimizer, losses)),
    }


@pytest.mark.parametrize(("kind", "budget"), [("tensor", "25%"), ("simple_fsdp", "30%"), ("llama", "25%")])
def test_weights_and_states_on_the_host_change_no_bit(tmp_path: Path, kind: str, budget: str) -> None:
    for one in ranks(with_host, tmp_path, kind, budget):
        assert not isinstance(one, str), one
        assert one["differences"] == {}
        assert one["peak"] <= one["planned"]
        assert one["weights"]
        assert one["states"]


def gathered_again(rank: int) -> Any:
    module, known = make("simple_fsdp"), make("simple_fsdp")
    optimizer, first = adamw(module), {"x": batch("simple_fsdp", rank, 0)["x"][:16]}
    known(**first).backward()
    step = memplan.optimize(module, first, budget="75%", optimizer=optimizer, cache=False, time_limit=4)
    step(**first)
    adamw(known).step()
    schedule, program = step.plan.schedule, step.plans[0].program
    runs = Counter(schedule.targets[schedule.verbs == Verb.COMPUTE].tolist())
    own = [n for n, each in enumerate(program.operations) if is_collective(each.call)]
    weights = zip(known.parameters(), module.parameters(), strict=True)
    return sum(runs[place] - 1 for place in own), [error(*each) for each in weights]


def test_weights_are_gathered_once_more_where_memory_is_short(tmp_path: Path) -> None:
    for found in ranks(gathered_again, tmp_path):
        assert not isinstance(found, str), found
        again, errors = found
        assert again > 0
        assert not any(errors)


def overlapped(rank: int) -> Any:
    """Return the number of collectives, the seconds of a plan and of its list on one queue, the
    computations between each collective and the first wait for it, and how weights differ."""
    module, known = make("simple_fsdp"), make("simple_fsdp")
    step = planned(module, adamw(module), "simple_fsdp", rank, "100%")
    optimizer = adamw(known)
    step(**batch("simple_fsdp", rank, 0))
    loss_of(known(**batch("simple_fsdp", rank, 0))).backward()
    optimizer.step()
    plan, graph = step.plan, step.plans[0].graph
    alone = simulate(on_one_queue(graph), plan.schedule, budget=plan.figures.peak).figures
    lines = step.plans[0].source.splitlines()
    between = list[int]()
    for place, line in enumerate(lines):
        if "add(COMM, communicate" in line:
            ticket = line.split(" = ")[0].strip()
            until = next(n for n, other in enumerate(lines) if other.strip() == f"wait({ticket})")
            between.append(sum(" = f" in other and ".issue(" not in other for other in lines[place:until]))
    weights = zip(known.parameters(), module.parameters(), strict=True)
    errors = [error(*each) for each in weights]
    return len(graph.operations.comm), plan.figures.time, alone.time, between, errors


def test_collectives_overlap_with_computations(tmp_path: Path) -> None:
    """In the plan, and in its code: computations run between most of them and what waits for them."""
    for found in ranks(overlapped, tmp_path):
        assert not isinstance(found, str), found
        count, seconds, alone, between, errors = found
        assert count > 0
        assert seconds < alone
        assert len(between) >= count
        assert sum(each > 0 for each in between) > len(between) / 2
        assert not any(errors)


def counted_calls(rank: int) -> tuple[list[str], list[str]]:
    """Return the collectives of planning and of two iterations, in order. One rank is late at random."""
    calls, random, run = list[str](), Random(rank), Collective.issue

    def noted(self: Collective, *arguments: Any) -> Any:
        calls.append(f"{self.__name__} {list(arguments[0].shape)}")
        time.sleep(random.choice((0.0, 0.02)) if rank else 0.0)
        return run(self, *arguments)

    Collective.issue = noted
    module = make("sequence")
    step = planned(module, adamw(module), "sequence", rank, "60%")
    planning = list(calls)
    for number in range(2):
        step(**batch("sequence", rank, number))
    return planning, calls[len(planning) :]


def test_all_ranks_call_each_collective_equally_often(tmp_path: Path) -> None:
    """While they plan, and in the order of the schedule afterwards, whatever each call takes."""
    first, second = ranks(counted_calls, tmp_path)
    assert not isinstance(first, str), first
    assert first == second
    planning, training = first
    assert set(planning) == set(training)


def in_many_budgets(rank: int) -> list[list[str]]:
    """Return the collectives of an iteration by each of several plans."""
    found = list[list[str]]()
    run = Collective.issue

    def noted(self: Collective, *arguments: Any) -> Any:
        found[-1].append(f"{self.__name__} {list(arguments[0].shape)}")
        return run(self, *arguments)

    for budget in ("60%", "70%", "80%", "90%", "100%"):
        module = make("sequence")
        step = planned(module, adamw(module), "sequence", rank, budget, time_limit=1)
        found.append([])
        Collective.issue = noted
        step(**batch("sequence", rank, 0))
        Collective.issue = run
    return found


def test_ranks_call_collectives_in_one_order(tmp_path: Path) -> None:
    first, second = ranks(in_many_budgets, tmp_path)
    assert not isinstance(first, str), first
    assert all(map(len, first))
    assert first == second


def forward_and_other_shapes(rank: int) -> Any:
    module, known = make("sequence"), make("sequence")
    step = planned(module, adamw(module), "sequence", rank, "70%")
    given = batch("sequence", rank, 1)
    shorter = {name: each[:2].contiguous() for name, each in given.items()}
    loss = step.evaluate(**given).loss
    with torch.no_grad():
        expected = known(**given)
    optimizer = adamw(known)
    own = step(**shorter)
    eager = known(**shorter)
    eager.backward()
    optimizer.step()
    weights = zip(known.parameters(), module.parameters(), strict=True)
    return [error(expected, loss), error(eager.detach(), own.detach()), *(error(*each) for each in weights)]


def test_forward_passes_and_other_shapes_get_plans_too(tmp_path: Path) -> None:
    for found in ranks(forward_and_other_shapes, tmp_path):
        assert not isinstance(found, str), found
        assert not any(found)


def accumulated(rank: int) -> Any:
    known = trained_eagerly("tensor", rank, every=2)
    module = make("tensor")
    optimizer = adamw(module)
    step = planned(module, optimizer, "tensor", rank, "70%", gradient_accumulation_steps=2)
    losses = [step(**batch("tensor", rank, number)).detach() for number in range(2 * STEPS)]
    weights = zip(known[0].parameters(), module.parameters(), strict=True)
    return [error(*each) for each in (*zip(known[2], losses, strict=True), *weights)]


def test_gradients_accumulate(tmp_path: Path) -> None:
    for found in ranks(accumulated, tmp_path):
        assert not isinstance(found, str), found
        assert not any(found)


def clipped(rank: int, kind: str, every: int) -> Any:
    """Return the norms by eager PyTorch and by a plan, and what differs of the training."""
    known, norms = list[Tensor](), list[Tensor]()
    eager = trained_eagerly(kind, rank, every, norms=known)
    module = make(kind)
    optimizer = adamw(module)
    step = planned(
        module,
        optimizer,
        kind,
        rank,
        "70%",
        time_limit=1,
        max_grad_norm=MOST,
        gradient_accumulation_steps=every,
    )
    losses = list[Tensor]()
    for number in range(STEPS * every):
        losses.append(step(**batch(kind, rank, number)).detach())
        if (number + 1) % every == 0:
            norms.append(step.grad_norm)
    return torch.stack(known), torch.stack(norms), differences(eager, (module, optimizer, losses))


@pytest.mark.parametrize(("kind", "every"), [("tensor", 2), ("sequence", 1), ("plain", 1)])
def test_gradients_are_clipped_as_by_eager_pytorch_bit_by_bit(tmp_path: Path, kind: str, every: int) -> None:
    """Of ordinary gradients alone each rank takes the norm of its own, as PyTorch does."""
    for found in ranks(clipped, tmp_path, kind, every):
        assert not isinstance(found, str), found
        known, norms, different = found
        assert known.max() > MOST
        assert torch.equal(known, norms)
        assert different == {}


def on_two_dimensions(rank: int, kind: str) -> Any:
    """Return what differs of clipped training, the groups of collectives, and peaks: real and planned."""
    known, norms = list[Tensor](), list[Tensor]()
    eager = trained_eagerly(kind, rank, norms=known)
    module = make(kind)
    optimizer, losses = adamw(module), list[Tensor]()
    step = planned(module, optimizer, kind, rank, "70%", time_limit=1, max_grad_norm=MOST)
    batches = [batch(kind, rank, number) for number in range(STEPS)]

    def train() -> None:
        for each in batches:
            losses.append(step(**each).detach())
            norms.append(step.grad_norm)

    counted = live_peak(train)
    given = own_bytes((*module.parameters(), *module.buffers(), *batches[0].values()))
    outside = COUNT * len(optimizer.state) + own_bytes((*losses, *norms))
    different = differences(eager, (module, optimizer, losses))
    different |= {f"norm {n}": error(*each) for n, each in enumerate(zip(known, norms, strict=True))}
    groups = sorted(groups_of(step.plans[0].program))
    peaks = counted.peak_bytes + given - outside, step.plan.figures.peak
    return {n: e for n, e in different.items() if e}, groups, *peaks


@pytest.mark.parametrize("kind", MESHES)
def test_collectives_of_two_groups_on_four_ranks(tmp_path: Path, kind: str) -> None:
    """Losses, norms, weights and states are eager PyTorch's, bit by bit. Of a mesh of two dimensions; and of
    DTensors on one dimension, with collectives over the other.
    """
    for found in ranks(on_two_dimensions, tmp_path, kind, size=4):
        assert not isinstance(found, str), found
        different, groups, peak, most = found
        assert different == {}
        assert groups == ["0+1", "0+2"]
        assert peak <= most


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────


class Summed(torch.autograd.Function):
    """A sum over the ranks. functional: by the function that changes nothing in place."""

    functional = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if Summed.functional:
            return functional.all_reduce(x, "sum", cast("Any", dist.group.WORLD))
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


class InPlace(nn.Module):
    """Communicates within autograd, or outside of it."""

    def __init__(self, *, function: bool) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(8, 8)), function

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        if self.function:
            return cast("Any", Summed.apply)(y).sum()
        other = y.detach().clone()
        dist.all_reduce(other)
        return (y * other).sum()


def by_sgd(module: nn.Module, x: Tensor) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return memplan.optimize(module, (x,), budget="100%", cache=False, optimizer=optimizer)


def in_place(_rank: int, function: bool) -> Any:
    by_sgd(InPlace(function=function), torch.ones(4, 8))


def functional_instead(rank: int) -> Any:
    """Do what the line says."""
    Summed.functional = True
    x, module = torch.ones(4, 8) * (1 + rank), InPlace(function=True)
    return float(by_sgd(module, x)(x)), float(InPlace(function=True)(x))


@pytest.mark.parametrize("function", [False, True])
def test_collectives_that_change_tensors_are_refused(tmp_path: Path, function: bool) -> None:
    for found in ranks(in_place, tmp_path, function):
        assert found.startswith("test_collectives.py:"), found
        assert "calls torch.distributed.all_reduce, which changes a tensor in place where no plan" in found


def test_functional_ones_are_planned_instead(tmp_path: Path) -> None:
    for found in ranks(functional_instead, tmp_path):
        assert not isinstance(found, str), found
        assert found[0] == found[1]


class Centred(nn.Module):
    """A student that is compared with a centre, the average of all ranks' outputs so far, as DINO has it.

    by: what forward averages with; None to leave that to the loop.
    """

    def __init__(self, by: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.layers, self.by = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)), by
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.layers(x)
        loss = (y - self.centre).square().mean()
        if self.by is not None:
            self.move(y, self.by)
        return {"loss": loss, "y": y}

    @torch.no_grad()
    def move(self, y: Tensor, by: Callable[[Tensor], Tensor]) -> None:
        self.centre.mul_(0.9).add_(by(y.detach().sum(0)), alpha=0.1 / (RANKS * len(y)))


def changed(total: Tensor) -> Tensor:
    dist.all_reduce(total)
    return total


def functionally(total: Tensor) -> Tensor:
    return functional.all_reduce(total, "sum", cast("Any", dist.group.WORLD))


def centred(rank: int) -> tuple[list[str], list[bool]]:
    """Return the refusals of a module that communicates under DistributedDataParallel, and whether it trains
    as by eager PyTorch if that is done after the step.
    """
    lines, runs = list[str](), list[list[Tensor]]()
    for by in (changed, functionally):
        module = nn.parallel.DistributedDataParallel(Centred(by))
        with pytest.raises(memplan.InputError) as refused:
            memplan.optimize(module, {"x": torch.ones(3, 6)}, budget="100%", cache=False)
        lines.append(str(refused.value))
    for plans in (False, True):
        torch.manual_seed(2)
        own = Centred(None if plans else changed)
        module = nn.parallel.DistributedDataParallel(own)
        optimizer, losses, step = adamw(module), list[Tensor](), None
        for number in range(3):
            x = torch.randn(3, 6, generator=torch.Generator().manual_seed(10 * rank + number))
            if plans:
                chosen: dict[str, Any] = {"budget": "100%", "cache": False, "solver": "store-all"}
                step = step or memplan.optimize(module, {"x": x}, return_outputs=True, **chosen)
            loss = module(x)["loss"] if step is None else step(x=x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step is not None:
                own.move(step.output["y"], changed)
            losses.append(loss.detach())
        runs.append([*losses, *(each.detach() for each in own.state_dict().values())])
    return lines, [torch.equal(one, other) for one, other in zip(*runs, strict=True)]


def test_a_collective_of_a_buffer_under_ddp_is_refused_with_what_works(tmp_path: Path) -> None:
    for found in ranks(centred, tmp_path):
        (line, other), equal = found
        end = (
            ", and collectives of the module's own code are not planned in DistributedDataParallel: call it "
            "after the step, on step.output (return_outputs=True); or, if the loss needs its result, plan "
            "the network alone, memplan.optimize_module(DistributedDataParallel(network), x), and compute "
            "the loss outside"
        )
        assert line.endswith(f"calls torch.distributed.all_reduce{end}"), found
        assert other.endswith(f"the module calls all_reduce{end}"), found
        assert equal == [True] * len(equal)


class TwoSums(nn.Module):
    """Sums over two groups, of which a rank has chosen the second."""

    def __init__(self, second: Any) -> None:
        super().__init__()
        self.weight, self.second = nn.Parameter(torch.ones(WIDE, 8)), second

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        world: Any = dist.group.WORLD
        for group in (world, self.second):
            y = y + functional.all_reduce(y.detach(), "sum", group)
        return y.square().sum()


def refused(rank: int, what: str) -> Any:
    module: Any = make("tensor")
    if what == "groups":
        alone = dist.new_group([1])
        module = TwoSums(alone if rank else dist.group.WORLD)
    if what == "models" and rank:
        module.layers = module.layers[:2]
    options: dict[str, Any] = {
        "compile": {"compile": True},
        "budget": {"budget": "90%" if rank else "80%"},
        "optimizer": {"optimizer": None},
    }.get(what, {})
    chosen: dict[str, Any] = {"budget": "100%", "optimizer": adamw(module), "cache": False, **options}
    return str(memplan.optimize(module, batch("tensor", rank, 0), **chosen))


REFUSALS = {
    "groups": "ranks 0 and 1 differ in the ranks of a collective, [0, 1] and [1]: they must run the same",
    "models": "ranks 0 and 1 differ in the operations of an iteration, ",
    "compile": "a module that communicates and compile are not supported together: leave compile out",
    "budget": "ranks 0 and 1 differ in budget=: they must run the same plan",
    "optimizer": "a module that communicates needs the optimizer, whose updates are in the plan",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_refused_is_refused_on_every_rank(tmp_path: Path, what: str) -> None:
    for found in ranks(refused, tmp_path, what):
        assert REFUSALS[what] in found


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────


def saved_and_loaded(rank: int, kind: str, folder: str) -> Any:
    """Train, save, and go on; load with other values, and go on.

    Return what differs, the saved weights and first moments.
    """
    steps, trained = list[Any](), list[Trained]()
    for number in range(2):
        module = make(kind)
        optimizer = adamw(module)
        step = planned(module, optimizer, kind, rank, "100%", solver="store-all")
        for _ in range(2 - number):  # states are there, or they are not
            step(**batch(kind, rank, 7 * number))
        steps.append(step)
        trained.append((module, optimizer, []))
    steps[0].save(folder, extra={"epoch": 3})
    weights = {name: whole(each) for name, each in trained[0][0].state_dict().items()}
    states = trained[0][1].state_dict()["state"]
    moments = {number: whole(row["exp_avg"]) for number, row in states.items()}
    assert steps[1].load(folder) == {"epoch": 3}
    for step, (_module, _optimizer, losses) in zip(steps, trained, strict=True):
        losses.append(step(**batch(kind, rank, 1)).detach())
    return differences(*trained), weights, moments


@pytest.mark.parametrize(("kind", "size"), [("tensor", 2), ("mesh", 4)])
def test_checkpoints_have_whole_tensors(tmp_path: Path, kind: str, size: int) -> None:
    """Training goes on from them bit by bit, and one process loads them."""
    found = ranks(saved_and_loaded, tmp_path, kind, str(tmp_path / "checkpoint"), size=size)
    for one in found:
        assert not isinstance(one, str), one
        assert one[0] == {}
    _different, weights, moments = found[0]
    if kind == "tensor":
        module = Mlps()
        optimizer = adamw(module)
        checkpoint.load(tmp_path / "checkpoint", module, optimizer)
        assert all(torch.equal(each, weights[name]) for name, each in module.state_dict().items())
        own = optimizer.state_dict()["state"]
        assert all(torch.equal(own[number]["exp_avg"], each) for number, each in moments.items())


def not_saved(rank: int, folder: str) -> list[str]:
    module, found = cast("Any", make("tensor")), list[str]()
    step = planned(module, adamw(module), "tensor", rank, "100%", solver="store-all")
    with torch.no_grad():
        module.layers[1].norm.bias.add_(rank)
    for _ in range(2):
        with pytest.raises(memplan.MemplanError) as error:
            step.save(folder)
        found.append(str(error.value))
        weight: Any = module.layers[0].up.weight
        strided = _StridedShard(0, split_factor=2)
        made = DTensor.from_local(weight.to_local(), weight.device_mesh, [strided], run_check=False)
        module.layers[0].up.weight = nn.Parameter(made)
    return found


def test_what_has_no_whole_tensor_is_not_saved(tmp_path: Path) -> None:
    for first, second in ranks(not_saved, tmp_path, str(tmp_path / "checkpoint")):
        assert first.startswith(
            "layers.1.norm.bias has other values on rank 1 than on rank 0, and is no DTen"
        )
        assert second.startswith("step.save and step.load do not gather layers.0.up.weight, placed as _S")
        assert "\n" not in first + second
    assert not (tmp_path / "checkpoint").exists()


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────


def one_fails(rank: int, kind: str, on_its_queue: bool, last: int) -> Any:
    module = make(kind)
    step = planned(module, adamw(module), kind, rank, "80%", time_limit=1)
    run, calls = Collective.issue, list[int]()

    def full() -> None:
        raise OSError("the disk is full")

    def fails(self: Collective, *arguments: Any) -> Any:
        calls.append(0)
        if rank == last and len(calls) == 3:
            if on_its_queue:
                return run(self, *arguments)[0], full
            full()
        return run(self, *arguments)

    Collective.issue = fails
    begun = time.perf_counter()
    try:
        step(**batch(kind, rank, 0))
    except (memplan.MemplanError, OSError) as error:
        first, seconds = str(error), time.perf_counter() - begun
        with pytest.raises(memplan.MemplanError, match="start all ranks anew"):
            step(**batch(kind, rank, 1))
        return first, seconds
    return None


@pytest.mark.parametrize(("kind", "on_its_queue", "size"), [("tensor", True, 2), ("mesh", False, 4)])
def test_where_one_rank_fails_the_others_end_with_its_error(
    tmp_path: Path, kind: str, on_its_queue: bool, size: int
) -> None:
    """Also those that are in no group with it."""
    *others, (last, _seconds) = ranks(one_fails, tmp_path, kind, on_its_queue, size - 1, size=size)
    assert last == "the disk is full"
    for first, seconds in others:
        assert first.startswith(f"rank {size - 1} of {size} has failed: the disk is full; start all ranks")
        assert seconds < 20


def one_alone(rank: int) -> Any:
    if rank:
        time.sleep(30)
        return None
    module = make("plain")
    begun = time.perf_counter()
    try:
        planned(module, adamw(module), "plain", rank, "100%")
    except memplan.MemplanError as error:
        return str(error), time.perf_counter() - begun
    return None


def test_a_rank_that_plans_alone_ends_with_a_line(tmp_path: Path) -> None:
    found, _other = ranks(one_alone, tmp_path, timeout=8)
    assert isinstance(found, tuple), found
    line, seconds = found
    assert "rank 1 did not come to memplan.optimize within 8 s" in line
    assert "\n" not in line
    assert seconds < 25
