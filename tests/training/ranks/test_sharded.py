"""Sharded training on several ranks: FSDP2's bits, within the planned memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.ranks import Ranks
from memplan.graphs.machine import Memory
from memplan.planner.schedule.schedule import Verb
from memplan.solvers.offloading.sharded.policies import POLICIES
from memplan.training.ranks.together import end_groups
from not_none import not_none
from ranks import ranks
from sharded_models import batch, make
from sharded_training import COUNT, adamw, error, local, wrapped
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

pytestmark = pytest.mark.scripts

STEPS = 5


def by_fsdp(rank: int, size: int, kind: str) -> tuple[nn.Module, torch.optim.AdamW, list[Tensor]]:
    """Train by FSDP2, each layer a unit."""
    module = wrapped(make(kind), size)
    optimizer, losses = adamw(module), list[Tensor]()
    for step in range(STEPS):
        loss = module(**batch(kind, rank, step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return module, optimizer, losses


def policy_named(rank: int, size: int, folder: str) -> tuple[str, str, str, str]:
    """Plan by FSDP2's policies, again from the plan cache; return what report and files name."""
    named = list[str]()
    for _again in range(2):
        module = make("gpt2")
        step = memplan.optimize(
            module,
            batch("gpt2", rank, 0),
            budget="100%",
            optimizer=adamw(module),
            shard=init_device_mesh("cpu", (size,)),
            solver="fsdp",
            cache=f"{folder}/cache",
        )
        report = step.report()
        named += [report.plans[0].policy, str(report)]
    step.plan.save(f"{folder}/{rank}")
    return named[0], named[1], named[2], Path(folder, str(rank), "schedule.json").read_text()


def test_the_report_and_the_plan_on_disk_name_fsdp2s_policy(tmp_path: Path) -> None:
    for policy, report, again, file in ranks(policy_named, tmp_path, 2, str(tmp_path), size=2):
        assert policy in map(str, POLICIES)
        assert f"policy {policy}: the schedule is FSDP2's" in report.splitlines()
        assert again == json.loads(file)["solver"]["policy"] == policy


def delayed(rank: int) -> Callable[[], None]:
    """Have collectives of this rank begin late, at random."""
    random, gather = Random(rank), Ranks.gather

    def late(self: Ranks, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        time.sleep(random.choice((0.0, 0.0, 0.01)))
        gather(self, pairs)

    Ranks.gather = late
    return lambda: setattr(Ranks, "gather", gather)


def both(rank: int, size: int, kind: str, budget: str, solver: str) -> dict[str, Any]:
    """Train by FSDP2 and by a plan; return what differs."""
    known, known_optimizer, losses = by_fsdp(rank, size, kind)
    module = make(kind)
    optimizer = adamw(module)
    step = memplan.optimize(
        module,
        batch(kind, rank, 0),
        budget=budget,
        optimizer=optimizer,
        shard=init_device_mesh("cpu", (size,)),
        solver=solver,
        time_limit=1,
        cache=False,
    )
    # Shares of weights are there before the count begins; those of states are made in it.
    shares = sum(local(each).untyped_storage().nbytes() for each in module.parameters())
    batches, found = [batch(kind, rank, number) for number in range(STEPS)], list[Tensor]()

    def train() -> None:
        found.extend(step(**each).detach() for each in batches)
        cycle = step.plans[0].cycle
        assert cycle is not None
        cycle.end_jobs()

    undo = delayed(rank) if rank else lambda: None
    counted = live_peak(train)
    undo()
    states = known_optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    given = sum(each.nbytes for each in (*batches[0].values(), *module.buffers()))
    outside = COUNT * len(states[0]) + sum(each.nbytes for each in found)
    verbs = step.plan.schedule.verbs
    weights = module.state_dict()
    return {
        "losses": (losses, found),
        "weights": [(name, error(each, weights[name])) for name, each in known.state_dict().items()],
        "states": [
            (f"{number}.{name}", error(state, states[1][number][name]))
            for number, row in states[0].items()
            for name, state in row.items()
        ],
        "placed": all(
            isinstance(each, DTensor) and each.placements == (Shard(0),) for each in module.parameters()
        ),
        "gathers": int((verbs == Verb.PREFETCH).sum()),
        "joined": not_none(step.plans[0].cycle).sources[-1].count("] = now["),
        "at_start": len(step.plan.schedule.initial.on(Memory.DEVICE)),
        "scatters": int((verbs == Verb.OFFLOAD).sum()),
        "trained": len(states[0]),
        "parameters": len(list(module.parameters())),
        "peak": counted.peak_bytes + shares + given - outside,
        "planned": step.plan.figures.peak,
    }


def check(found: dict[str, Any], most: float = 0.0) -> None:
    assert not isinstance(found, str), found
    planned, known = found["losses"]
    worst = max(
        abs(float(one) - float(other)) / abs(float(other)) for one, other in zip(planned, known, strict=True)
    )
    assert worst <= most
    assert [row for row in (*found["weights"], *found["states"]) if row[1] > most] == []
    assert found["placed"]
    assert found["joined"]  # several gathers are one collective
    assert found["scatters"] == found["trained"]
    assert found["peak"] <= found["planned"]


@pytest.mark.parametrize(
    ("kind", "budget", "solver"),
    [("gpt2", "70%", "joint"), ("vit", "70%", "joint"), ("lora", "80%", "joint")],
)
def test_two_ranks_train_as_by_fsdp2_bit_by_bit(tmp_path: Path, kind: str, budget: str, solver: str) -> None:
    """One rank begins its collectives late, at random."""
    for found in ranks(both, tmp_path, 2, kind, budget, solver):
        check(found)
        if kind == "lora":
            assert found["trained"] < found["parameters"]
            assert found["gathers"] < found["parameters"]  # some frozen weights stay gathered for ever


def test_four_ranks_train_as_by_fsdp2(tmp_path: Path) -> None:
    """Some have fewer rows of a weight, or none. Sums of four may round otherwise."""
    for found in ranks(both, tmp_path, 4, "llama", "70%", "joint", size=4):
        check(found, 1e-6)


def test_weights_that_are_gathered_in_backward_are_the_updated_ones(tmp_path: Path) -> None:
    """Some start on the device: the iteration before has gathered them, after their update."""
    for found in ranks(both, tmp_path, 2, "gpt2", "100%", "fsdp-prefetch"):
        check(found)
        assert found["gathers"] == found["parameters"]
        assert found["at_start"]


def test_fsdp2s_policy_runs_too(tmp_path: Path) -> None:
    """A layer's weights are gathered twice: for forward, and for backward."""
    for found in ranks(both, tmp_path, 2, "gpt2", "55%", "fsdp"):
        check(found)
        assert found["gathers"] > found["parameters"]


def small_plan(module: nn.Module, budget: str) -> Any:
    optimizer, x = torch.optim.AdamW(module.parameters()), torch.ones(4, 6)
    return memplan.optimize(
        module, x, loss_fn=torch.sum, budget=budget, optimizer=optimizer, shard=True, cache=False
    )


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def others(rank: int) -> Any:
    torch.manual_seed(rank)
    small_plan(small(), "100%")


def test_ranks_with_other_weights_are_refused(tmp_path: Path) -> None:
    line = "ranks 0 and 1 have different values of 0.weight: make the model from one seed"
    for found in ranks(others, tmp_path):
        assert found.startswith(line), found


def one_fails(rank: int) -> Any:
    module = small()
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.5)
    small_plan(module, "1%")


def test_where_rank_0_has_no_plan_none_has(tmp_path: Path) -> None:
    first, second = ranks(one_fails, tmp_path)
    assert "budget" in first
    assert second == f"rank 0 of 2 has no plan: {first}"


def gloo_threads() -> int:
    """Number of threads of this process that run gloo's collectives."""
    names = [(each / "comm").read_text() for each in Path("/proc/self/task").iterdir()]
    return sum("gloo_runloop" in name for name in names)


def ended(rank: int) -> tuple[int, int, int]:
    dist.barrier()  # the default group's threads, which are the user's, start with its first collective
    time.sleep(0.5)  # a thread has its name some time after it began
    before, module = gloo_threads(), make("gpt2")
    step = memplan.optimize(
        module, batch("gpt2", rank, 0), budget="100%", optimizer=adamw(module), shard=True, time_limit=1
    )
    step(**batch("gpt2", rank, 0))
    meanwhile = gloo_threads()
    end_groups()  # what the interpreter calls before it ends
    return before, meanwhile, gloo_threads()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux names its threads")
def test_no_thread_of_a_collective_outlives_the_program(tmp_path: Path) -> None:
    """It would come back to Python for a tensor, and abort the process: 5 of about 55 runs, before."""
    for before, meanwhile, after in ranks(ended, tmp_path):
        assert meanwhile > before == after
