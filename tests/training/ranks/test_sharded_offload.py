"""Sharded training whose optimizer states, or shares of weights too, lie on the host: FSDP2's bits, in less
memory than the shares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.devices.storage.offloaded import hold_of
from memplan.graphs.machine import Link, Links, Machine
from memplan.graphs.transformations.sharding import rank_bytes
from memplan.planner.schedule.schedule import DEFAULT_MODE, Verb
from memplan.program.program import Program
from memplan.training.ranks import together
from not_none import not_none
from ranks import ranks
from sharded_models import batch, make
from sharded_training import (
    Policies,
    Size,
    Trained,
    adamw,
    by_fsdp,
    by_plan,
    differences,
    local,
    mesh_of,
    planned_step,
    wrapped,
)
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

pytestmark = pytest.mark.scripts

STEPS = 5
GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
FORMS = "constant_pad_nd", "clone", "_to_copy"
NODE = Machine(host_capacity=2**30, links=Links(Link(1e9, 1e-6), Link(1e9, 1e-6)))


def batches_of(kind: str, rank: int, count: int = STEPS) -> list[dict[str, Tensor]]:
    return [batch(kind, rank, number) for number in range(count)]


def offloading(rank: int, size: Size, kind: str, budget: str) -> dict[str, Any]:
    """Train by FSDP2, and by a plan that may use the host; return what differs, and the bytes."""
    batches = batches_of(kind, rank)
    known, module = by_fsdp(kind, size, batches), make(kind)
    optimizer = adamw(module)
    chosen: dict[str, Any] = {"machine": NODE, "shard": mesh_of(size), "time_limit": 2}
    step = planned_step(module, optimizer, batches[0], budget, **chosen)
    trained, peak = by_plan(step, module, optimizer, batches)
    graph, schedule = step.plan.graph, step.plan.schedule
    names = graph.tensors.name
    moved = {names[x] for x in schedule.targets[schedule.verbs == Verb.PREFETCH].tolist()}
    on_cpu = (schedule.verbs == Verb.COMPUTE) & (schedule.wheres != DEFAULT_MODE)
    ways = zip(schedule.targets[on_cpu].tolist(), schedule.wheres[on_cpu].tolist(), strict=True)
    temporaries = [graph.operations.modes[operation][where - 1].workspace for operation, where in ways]
    return {
        "different": differences(known, trained),
        "peak": peak,
        # One thread updates on the CPU, at no set moment, and the counter sees what it allocates there too.
        "seen": step.plan.figures.peak + max(temporaries, default=0),
        "planned": step.plan.figures.peak,
        "budget": step.plan.budget,
        "shares": rank_bytes(graph),
        "on host": [name for name in moved if name.endswith((".exp_avg", ".exp_avg_sq"))],
        "weights on host": sorted(moved & dict(module.named_parameters()).keys()),
        "updated on the CPU": int(on_cpu.sum()),
        "misplaced": misplaced(step.plans[0].program),
        "capacity": not_none(graph.machine).host_capacity,
    }


def misplaced(program: Program) -> list[str]:
    """Return the gathers after which something else comes than the first reader, and the scatters before
    which something else comes than the last operation that makes the gradient.
    """
    operations, found = program.operations, list[str]()
    kinds = [one.name.rpartition("/")[2].rstrip("_0123456789") for one in operations]
    for place, (one, kind) in enumerate(zip(operations, kinds, strict=True)):
        if kind == GATHER:
            after = next(k for k in range(place, len(kinds)) if kinds[k] not in (GATHER, *FORMS))
            found += [one.name] * set(one.writes).isdisjoint(operations[after].reads)
        elif kind == SCATTER:
            before = place - 1
            while kinds[before] in (SCATTER, *FORMS, "update"):
                before -= 1
            reads = {x for k in range(before, place + 1) for x in operations[k].reads}
            found += [one.name] * reads.isdisjoint(operations[before].writes)
    return found


@pytest.mark.parametrize(
    ("kind", "budget", "size"), [("gpt2", "20%", 2), ("lora", "50%", 2), ("llama", "25%", 4)]
)
def test_states_on_the_host_change_no_bit(tmp_path: Path, kind: str, budget: str, size: int) -> None:
    """Of four ranks some have fewer rows of a weight, or none, and sums may round otherwise."""
    for found in ranks(offloading, tmp_path, size, kind, budget, size=size):
        assert not isinstance(found, str), found
        assert all(each <= 1e-6 * (size > 2) for each in found["different"].values()), found["different"]
        assert found["peak"] <= found["seen"]
        assert found["planned"] <= found["budget"]
        assert found["on host"]
        assert found["capacity"] == 2**30 // size
        if kind == "gpt2":
            assert found["budget"] < found["shares"]  # weights and states alone would not fit


@pytest.mark.parametrize(
    ("kind", "budget", "size"),
    [("gpt2", "8%", 2), ("lora", "12%", 2), ("llama", "8%", 4), ("gpt2", "8%", (2, 2))],
)
def test_shares_on_the_host_change_no_bit(tmp_path: Path, kind: str, budget: str, size: Size) -> None:
    """The budget is less than the least with which shares of weights stay on the device."""
    count = size if isinstance(size, int) else size[0] * size[1]
    for found in ranks(offloading, tmp_path, size, kind, budget, size=count):
        assert not isinstance(found, str), found
        assert not found["different"]
        assert found["peak"] <= found["seen"]
        assert found["planned"] <= found["budget"]
        assert found["weights on host"]
        assert found["updated on the CPU"]
        assert not found["misplaced"]


def held_and_saved(rank: int, folder: str, budget: str) -> dict[str, Any]:
    """Between iterations: evaluate, read the states, save; go on, load into a plan without a host."""
    batches = batches_of("gpt2", rank, 6)
    known, module = by_fsdp("gpt2", 2, batches), make("gpt2")
    optimizer = adamw(module)
    step = planned_step(module, optimizer, batches[0], budget, machine=NODE)
    losses = [step(**each).detach() for each in batches[:2]]
    before = sum(offloaded(optimizer))
    evaluated = step.evaluate(**batches[2])[0]
    step.save(folder)
    after = sum(offloaded(optimizer))
    losses += [step(**each).detach() for each in batches[2:4]]
    reads = [float(local(row["exp_avg"]).sum()) for row in optimizer.state.values()]
    losses += [step(**each).detach() for each in batches[4:]]
    other = make("gpt2")
    resumed = planned_step(other, adamw(other), batches[0], "100%")
    resumed.load(folder)
    again = [resumed(**each).detach() for each in batches[2:]]
    step.load(folder)
    back = [step(**each).detach() for each in batches[2:]]
    return {
        "different": differences(known, Trained(module, optimizer, losses, [])),
        "again": [torch.equal(one, two) for one, two in zip(again, losses[2:], strict=True)],
        "back": [torch.equal(one, two) for one, two in zip(back, losses[2:], strict=True)],
        "evaluated": torch.equal(evaluated, losses[2]),
        "offloaded": (before, after),
        "read": any(reads),
    }


def offloaded(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Per state whether it is offloaded now."""
    states = (row[name] for row in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    return [hold_of(local_tensor(each)) is not None for each in states]


@pytest.mark.parametrize("budget", ["22%", "10%"])
def test_what_is_on_the_host_is_read_saved_and_loaded(tmp_path: Path, budget: str) -> None:
    """With the smaller budget shares of weights are on the host too."""
    (tmp_path / "saved").mkdir()
    for found in ranks(held_and_saved, tmp_path, str(tmp_path / "saved"), budget):
        assert not isinstance(found, str), found
        assert not found["different"]
        assert all(found["again"])
        assert all(found["back"])
        assert found["evaluated"]
        assert found["offloaded"][0] == found["offloaded"][1] > 0  # a save reads them where they are
        assert found["read"]


def clipped_and_accumulated(rank: int, budget: str) -> dict[str, float]:
    batches = batches_of("gpt2", rank, 4)
    known, module = by_fsdp("gpt2", 2, batches, most=0.05, every=2), make("gpt2")
    optimizer, options = adamw(module), {"max_grad_norm": 0.05, "gradient_accumulation_steps": 2}
    step = planned_step(module, optimizer, batches[0], budget, machine=NODE, **options)
    losses, norms = list[Tensor](), list[Tensor]()
    for each in batches:
        losses.append(step(**each).detach())
        if step.grad_norm is not None:
            norms.append(step.grad_norm.clone())
    return differences(known, Trained(module, optimizer, losses, norms))


def larger(rank: int) -> str:
    module, first = make("gpt2"), batch("gpt2", rank, 0)
    step = planned_step(module, adamw(module), first, "25%", machine=NODE)
    with pytest.raises(memplan.InfeasibleError) as refused:
        step(**{name: each.repeat(32, 1) for name, each in first.items()})
    step(**first)
    return str(refused.value)


def test_a_later_batch_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """Plans of one step have one kind: the first has its shares on the device."""
    found, other = ranks(larger, tmp_path)
    assert found.startswith("no schedule within ")
    assert other == f"rank 0 of 2 has no plan: {found}"


@pytest.mark.parametrize("budget", ["45%", "14%"])
def test_clipped_sums_on_the_host_change_no_bit(tmp_path: Path, budget: str) -> None:
    for found in ranks(clipped_and_accumulated, tmp_path, budget):
        assert found == {}


def without_room(rank: int, free: int) -> Any:
    if rank:
        pytest.MonkeyPatch().setattr(together, "available_bytes", lambda: free)
    module = make("gpt2")
    planned_step(module, adamw(module), batch("gpt2", rank, 0), "30%", machine=NODE)


def test_a_rank_without_room_on_its_host_is_refused_on_all(tmp_path: Path) -> None:
    first, second = ranks(without_room, tmp_path, 1000)
    assert second.startswith("the plan needs ")
    assert "for each of the 2 ranks of this node, 1,000 are available to them here" in second
    assert second.endswith("no plan for so little was found: free some, or give a larger budget")
    assert first == f"rank 1 of 2: {second}"


def with_other(rank: int, option: str, values: tuple[Any, Any]) -> Any:
    module = nn.Sequential(nn.Linear(4, 4), nn.Flatten(0), nn.Linear(8, 1), nn.Flatten(0))
    for weight in module.parameters():
        nn.init.ones_(weight)
    chosen: dict[str, Any] = {option: values[rank], "loss_fn": torch.sum}
    return planned_step(module, adamw(module), {"input": torch.ones(2, 4)}, "100%", **chosen)


@pytest.mark.parametrize(("option", "values"), [("machine", (NODE, None)), ("max_grad_norm", (1.0, 2.0))])
def test_a_rank_with_another_option_is_refused_on_all(
    tmp_path: Path, option: str, values: tuple[Any, Any]
) -> None:
    line = f"ranks 0 and 1 differ in {option}=: they must run the same plan"
    assert ranks(with_other, tmp_path, option, values) == [line, line]


def wrapped_in_bfloat16(rank: int, budget: str) -> dict[str, Any]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    batches, policies = batches_of("gpt2", rank, 3), Policies(policy, policy)
    known, module = by_fsdp("gpt2", 2, batches, policies=policies), wrapped(make("gpt2"), 2, policies)
    optimizer = adamw(module)
    step = planned_step(module, optimizer, batches[0], budget, shard=None, machine=NODE)
    losses = [step(**each).detach() for each in batches]
    at_once = sum(offloaded(optimizer))
    return {"different": differences(known, Trained(module, optimizer, losses, [])), "offloaded": at_once}


@pytest.mark.parametrize("budget", ["30%", "18%"])
def test_modules_that_fsdp2_has_wrapped(tmp_path: Path, budget: str) -> None:
    """The shares of weights in bfloat16 are their float32 masters, on the host with the smaller budget."""
    for found in ranks(wrapped_in_bfloat16, tmp_path, budget):
        assert not isinstance(found, str), found
        assert not found["different"]
        assert found["offloaded"]
