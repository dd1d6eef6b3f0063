"""Several processes that train one model: as DistributedDataParallel does, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from ranks import RANKS, alone, ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.scripts

NORM = 0.1
"""What gradients are clipped to: the averages' norm, the same on all ranks."""


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16)) for _ in range(3)]
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), *wide, nn.Linear(16, 3))


def batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Only the last rank's last batch is smaller: it alone plans for it."""
    torch.manual_seed(7 + rank)
    lengths = [48, 48, 48, 20 if rank == RANKS - 1 else 48]
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


PLANS: list[dict[str, Any]] = [
    {"budget": "75%", "machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l"},
    {"budget": "90%", "solver": "search"},
]
"""Each rank's own: whatever order of computations a plan has, that of the averages is one."""

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "updates of all gradients": [{}, {}],
    "early": [{"early_updates": True}] * 2,
    "early, in buckets and row blocks": [
        {"early_updates": True, "bucket_size": "1KiB"},
        {"early_updates": True, "block_size": "1KiB", "solver": "auto", "budget": "100%"},
    ],
}
"""By a test's name, each rank's."""

Found = dict[str, Tensor]


def both(rank: int, name: str) -> tuple[Found, Found, int]:
    """Losses, weights and buffers of a planned run, and of one by DistributedDataParallel; how many
    iterations of the former ran twice.
    """
    found: list[Found] = []
    twice = 0
    for planned in (True, False):
        module = model()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        parallel = DistributedDataParallel(module)
        given = batches(rank)
        step = None
        if planned:
            step = memplan.optimize(
                parallel,
                given[0][0],
                targets=given[0][1],
                loss_fn=nn.CrossEntropyLoss(),
                optimizer=optimizer,
                max_grad_norm=NORM,
                **(PLANS[rank] | OPTIONS[name][rank]),
                time_limit=0.5,
                cache=False,
            )
        seen: list[Tensor] = []
        norms: list[Tensor] = []
        torch.manual_seed(11 + rank)
        for x, labels in given:
            if step is None:
                loss = nn.functional.cross_entropy(parallel(x), labels)
            else:
                loss = step(x, targets=labels)
            norm = step and step.grad_norm
            seen.append(loss.detach())
            if step is None:
                loss.backward()
                norm = nn.utils.clip_grad_norm_(module.parameters(), NORM)
                optimizer.step()
                optimizer.zero_grad()
            assert norm is not None
            norms.append(norm.detach().clone())
        weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        found.append({"losses": torch.stack(seen), "norms": torch.stack(norms), **weights})
        twice += 0 if step is None else sum(plan.rolled_back for plan in step.report().plans)
    return found[0], found[1], twice


@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_train_as_in_distributed_data_parallel(name: str, tmp_path: Path) -> None:
    """Weights moved. The last rank sees a shape that the others do not: it plans for it while they wait."""
    results = ranks(both, tmp_path, name)
    for result in results:
        assert not isinstance(result, str), result
        planned, baseline, twice = result
        assert [name for name in baseline if not torch.equal(planned[name], baseline[name])] == []
        expected = int((planned["norms"] > NORM).sum()) if name.startswith("early") else 0
        assert twice == expected
    (first, _, _), (second, _, _) = results
    names = ["norms", *(name for name, _parameter in model().named_parameters())]
    assert (first["norms"] > NORM).any()
    assert (first["norms"] < NORM).any()
    assert [name for name in names if not torch.equal(first[name], second[name])] == []
    assert not torch.equal(first["losses"], second["losses"])


def one_fails(rank: int) -> None:
    x = torch.randn(48, 6)
    memplan.optimize(
        DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))),
        x,
        loss_fn=torch.sum,
        budget="1%" if rank == 0 else "100%",
        solver="rotor",
        cache=False,
    )


def test_where_one_rank_has_no_plan_none_has(tmp_path: Path) -> None:
    first, second = ranks(one_fails, tmp_path)
    assert "budget" in first
    assert second == f"rank 0 of 2 has no plan: {first}"


def of_two_options(rank: int) -> list[str]:
    """Each rank has another value of an option that all must have."""
    module = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    lines = list[str]()
    both: list[dict[str, Any]] = [
        {"early_updates": not rank},
        {"early_updates": True, "max_grad_norm": 1.0 + rank},
    ]
    for options in both:
        try:
            memplan.optimize(
                DistributedDataParallel(module),
                torch.randn(48, 6),
                loss_fn=torch.sum,
                optimizer=torch.optim.SGD(module.parameters(), 0.1),
                budget="100%",
                cache=False,
                **{"max_grad_norm": 1.0, **options},
            )
        except memplan.MismatchError as error:
            lines.append(str(error))
    return lines


def test_ranks_that_would_not_run_an_iteration_twice_together_are_refused(tmp_path: Path) -> None:
    end = "all ranks must run an iteration twice, or none"
    first, second = ranks(of_two_options, tmp_path)
    assert first == [
        f"rank 1 has early_updates=False, this one True: {end}",
        f"rank 1 has max_grad_norm=2.0, this one 1.0: {end}",
    ]
    assert second == [
        f"rank 0 has early_updates=True, this one False: {end}",
        f"rank 0 has max_grad_norm=1.0, this one 2.0: {end}",
    ]


def hooked(module: DistributedDataParallel) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    module.register_comm_hook(None, default_hooks.allreduce_hook)


def test_what_a_plan_does_not_run_is_refused() -> None:
    with alone():
        parallel = DistributedDataParallel(model())
        hooked(parallel)
        with pytest.raises(memplan.InputError, match="has a communication hook, which a plan does not run"):
            memplan.optimize(parallel, torch.randn(48, 6), loss_fn=torch.sum, budget="100%")
