"""Whatever operation fails on one of two ranks, with whatever error: that comes out there, and the other rank
names it.

    the weights and states   are on each rank those before the iteration, or after it, or refused until others
                             are loaded
"""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, cast

import memplan
import pytest
import torch
from failing_operations import ERRORS, FailingAt, MineError, enter_faults
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.graphs.machine import Links, Machine
from memplan.model.accumulated import SUM
from memplan.model.processes import Processes
from memplan.runtime.run.cycle import LOST_AMONG_RANKS
from memplan.training.ranks.together import ranks_of
from memplan.updates.averages import Average
from ranks import ranks
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MACHINE = Machine(host_capacity=2**28, links=Links(d2h=1e9, h2d=1e9))
WAYS: dict[str, dict[str, Any]] = {
    "shard": {},
    "fully_shard": {"gradient_accumulation_steps": 2},
    "offloaded": {"machine": MACHINE, "budget": "80%"},
    "clipped": {"max_grad_norm": 0.1},
}
FAILS = 1
"""The rank that fails."""


def squares(output: Tensor) -> Tensor:
    return output.square().mean()


class Training:
    """A sharded step on this rank, with its first batch."""

    def __init__(self, way: str, folder: str) -> None:
        torch.manual_seed(3)
        layers = [nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)]
        self.module = nn.Sequential(*layers)
        mesh = init_device_mesh("cpu", (2,))
        if way == "fully_shard":
            for layer in (layers[0], layers[2], self.module):
                cast("Any", fully_shard)(layer, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)
        torch.manual_seed(dist.get_rank())
        self.batch = torch.randn(8, 6)
        self.step: Any = memplan.optimize(
            self.module,
            self.batch,
            loss_fn=squares,
            optimizer=self.optimizer,
            progress=False,
            solver="joint",
            time_limit=0.3,
            cache=folder,
            shard=None if way == "fully_shard" else mesh,
            **{"budget": "100%", **WAYS[way]},
        )

    def state(self) -> dict[str, Tensor]:
        """Return copies of this rank's weights and states, without sums that mean nothing."""
        found = {name: local_tensor(each) for name, each in self.module.state_dict().items()}
        batches = self.optimizer.param_groups[0].get("accumulated", {"batches": 0})["batches"]
        for number, row in enumerate(self.optimizer.state.values()):
            found |= {f"{number}.{k}": local_tensor(x) for k, x in row.items() if batches or k != SUM}
        found["batches so far"] = torch.tensor(batches)
        return {name: each.detach().clone() for name, each in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def fail_often(rank: int, way: str, folder: str, many: int) -> list[str]:
    """Fail at some operations of the first three iterations, each in a training of its own.

    many: cases per iteration, 0 for each fifth operation. Returns what is wrong.
    """
    enter_faults(setattr)
    training = Training(way, folder)
    weights = copy.deepcopy(training.module.state_dict())
    states, counts = [training.state()], list[int]()
    for _ in range(3):
        counting = FailingAt.now = FailingAt()
        training.step(training.batch)
        FailingAt.now = None
        counts.append(counting.count)
        states.append(training.state())
    assert not same(states[2], states[3])
    dist.broadcast_object_list(counts, FAILS)
    rng, wrong = random.Random(way), list[str]()
    for number, count in enumerate(counts):
        places = rng.sample(range(1, count + 1), many) if many else range(1, count + 1, 5)
        for place in places:
            kind = rng.choice(ERRORS[:5])
            wrong += fail(rank, Training(way, folder), number, place, kind, states, weights)
    return wrong


def fail(
    rank: int, training: Training, number: int, place: int, kind: Any, states: Any, weights: Any
) -> list[str]:
    """Fail at an operation of an iteration. Returns what is wrong."""
    for _ in range(number):
        training.step(training.batch)
    failing, caught = FailingAt(place if rank == FAILS else 0, kind), None
    FailingAt.now = failing
    try:
        training.step(training.batch)
        FailingAt.now = None
        if rank != FAILS:  # it has had all that it needs of the other, until the next
            training.step(training.batch)
    except BaseException as error:
        caught = error
    FailingAt.now = None
    if rank == FAILS and (kind == "Ctrl-C" or caught is None):
        # A Ctrl-C may come when the iteration has ended, which may have fewer operations than counted: states
        # that were read before stay on the device.
        ranks_of(training.step._executor.iteration).end(caught or RuntimeError("the iteration has ended"))
    wrong, where = list[str](), f"rank {rank}, {kind} at operation {place} of iteration {number}: "
    if rank != FAILS and not str(caught).startswith(f"rank {FAILS} of 2 has failed"):
        wrong.append(f"{where}said {caught!r}")
    known = isinstance(caught, KeyboardInterrupt) if isinstance(kind, str) else caught is failing.raised
    if rank == FAILS and not known and caught is not None:
        wrong.append(f"{where}raised {caught!r}")
    with suppress(memplan.MemplanError):
        if not any(same(training.state(), each) for each in states[number : number + 3 - (rank == FAILS)]):
            wrong.append(f"{where}left neither the state before nor that after it")
    training.module.load_state_dict(weights)
    loaded = training.module.state_dict()
    if not all(torch.equal(local_tensor(each), local_tensor(loaded[name])) for name, each in weights.items()):
        wrong.append(f"{where}can't load weights")
    dist.barrier()
    return wrong


@pytest.mark.parametrize(
    ("ways", "many"),
    [
        pytest.param(["shard", "fully_shard", "offloaded"], 2, marks=pytest.mark.scripts),
        *(pytest.param([way], 0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1500)]) for way in WAYS),
    ],
)
def test_a_failure_on_a_rank_leaves_nothing_half_done(tmp_path: Path, ways: list[str], many: int) -> None:
    folder = str(tmp_path / "cache")
    found = ranks(all_ways, tmp_path, ways, folder, many, limit=200 if many else 1200)
    assert found == [[], []], found


def all_ways(rank: int, ways: list[str], folder: str, many: int) -> list[str]:
    return [f"{way}: {line}" for way in ways for line in fail_often(rank, way, folder, many)]


def fail_in_ddp(rank: int, where: str) -> tuple[list[str], float, list[Tensor]]:
    """Fail on one rank before a collective, and repeat; then fail between two. The program goes on."""
    torch.manual_seed(3)
    module = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)))
    batch, optimizer = torch.randn(8, 6), torch.optim.AdamW(module.parameters(), lr=0.01)
    options: dict[str, Any] = {"budget": "100%", "time_limit": 0.3, "cache": False, "progress": False}
    step: Any = memplan.optimize(module, batch, loss_fn=squares, optimizer=optimizer, **options)
    step(batch)
    enter_faults(setattr)
    said = list[str]()
    if rank == FAILS:
        FailingAt.now = FailingAt(1, MineError)
        with suppress(MineError):
            step(batch)
        FailingAt.now = None
    step(batch)
    weights = [each.detach().clone() for each in module.parameters()]
    owner: Any = Processes if where == "average_into" else Average
    function, calls, begun = getattr(owner, where), 0, perf_counter()

    def fails(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("no room on the device")
        return function(*arguments)

    if rank == FAILS:
        setattr(owner, where, fails)
    for _ in range(2):
        try:
            step(batch)
        except (OSError, memplan.MemplanError) as error:
            said.append("; ".join([str(error), *getattr(error, "__notes__", ())]))
    seconds = perf_counter() - begun
    if rank == FAILS:
        sleep(6)
    return said, seconds, weights


@pytest.mark.scripts
@pytest.mark.parametrize("where", ["average_into", "issue"])
def test_a_rank_that_fails_between_two_averages_ends_the_others(tmp_path: Path, where: str) -> None:
    """Before the first it may repeat the iteration: the others wait.

    In the queue between the ranks, or among the computations while the first average is under way.
    """
    (first, seconds, weights), (own, _seconds, repeated) = ranks(fail_in_ddp, tmp_path, where)
    assert all(map(torch.equal, weights, repeated))
    line = "has failed: no room on the device; start all ranks anew, from a checkpoint"
    assert first == [f"rank 1 of 2 {line}"] * 2
    assert own[0] == f"no room on the device; {LOST_AMONG_RANKS}"
    assert own[1].startswith(f"this rank {line}")
    assert seconds < 5
