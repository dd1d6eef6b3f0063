"""Batches whose tensors lie differently on two ranks: slices of one, other strides, other memory formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.sharded.local_tensors import local_tensor
from ranks import ranks
from sharded_training import mesh_of
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

pytestmark = pytest.mark.scripts

STEPS = 3


class Placed(nn.Module):
    """A layer on a part of the batch's memory, at a place that depends on where the batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.as_strided((2, 8), (16, 1), x.storage_offset() + 4))


class Flat(nn.Module):
    """A layer after a reshape, which copies some layouts and not others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 16).exp())


class Rows(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Many(Rows):
    """Two layers on each of many tensors."""

    def forward(self, **given: Tensor) -> Tensor:
        return sum((self.layers(each) for each in given.values()), torch.zeros(()))


class Images(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


Batch = dict[str, Tensor]

Layout = Callable[[int, int], Batch]
"""Batch of a rank in a step."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def many(rank: int, step: int) -> Batch:
    """Return parts of larger tensors, each of another kind."""
    rows, row = drawn(4, 8, seed=step), drawn(1, 8, seed=step)
    return {
        "rows": rows[2 * rank : 2 * rank + 2],
        "every_second": rows[rank::2],
        "columns": drawn(2, 16, seed=step)[:, 8 * rank : 8 * rank + 8],
        "one": drawn(8, 1, seed=step).t() if rank else row,
        "expanded": row.expand(2, 8) if rank else drawn(2, 8, seed=step),
        "by_column": drawn(8, 2, seed=step).t() if rank else drawn(2, 8, seed=step),
    }


def turned(rank: int, step: int) -> Batch:
    """Return the same numbers by rows or by columns: another layout on each rank, and in each step."""
    x = drawn(2, 8, seed=step)
    return {"x": x.t().contiguous().t() if (rank + step) % 2 else x}


CASES: dict[str, tuple[Callable[[], nn.Module], Layout]] = {
    "many": (Many, many),
    "turned": (Rows, turned),
    "placed": (Placed, lambda rank, step: {"x": drawn(4, 16, seed=step)[rank : rank + 2, :12]}),
}


def channels(rank: int, step: int) -> Batch:
    """Return images in two memory formats: gradients of weights come in the batch's, and are copied."""
    formats = torch.contiguous_format, torch.channels_last
    return {"x": drawn(2, 3, 6, 6, seed=step).contiguous(memory_format=formats[rank])}


REFUSED: dict[str, tuple[Callable[[], nn.Module], Layout]] = {
    "ranks 0 and 1 differ in the operations of an iteration, layers.0.weight/update on one and "
    "layers.0.bias/update on the other, and in input x, torch.float32 [2, 3, 6, 6] with strides "
    "[108, 36, 6, 1] and torch.float32 "
    "[2, 3, 6, 6] with strides [108, 1, 18, 3]: give it one layout on all ranks, as contiguous() and": (
        Images,
        channels,
    ),
    "input x, torch.float32 [2, 8] with strides [8, 1] and torch.float32 [2, 8] with strides [1, 2]: ": (
        Flat,
        turned,
    ),
    "input x requires a gradient, which a step does not compute: call "
    "memplan.optimize_module, whose result is called as the module is, or detach the input": (
        Rows,
        lambda rank, step: {"x": drawn(2, 8, seed=step).requires_grad_(rank == 1)},
    ),
}


def squares(output: Tensor) -> Tensor:
    return output.square().mean()


def trained(module: nn.Module, run: Callable[[int], Tensor]) -> list[Tensor]:
    """Return losses, and this rank's weights, after some steps."""
    losses = [run(step).detach().clone() for step in range(STEPS)]
    return [*losses, *(local_tensor(each).detach().clone() for each in module.parameters())]


def by_fsdp(make: Callable[[], nn.Module], layout: Layout, rank: int) -> list[Tensor]:
    torch.manual_seed(1)
    module = make()
    fully_shard(module, mesh=mesh_of(2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

    def run(step: int) -> Tensor:
        loss = squares(module(**layout(rank, step)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return trained(module, run)


def planned(module: nn.Module, first: Batch, **options: Any) -> Any:
    chosen: dict[str, Any] = {"solver": "fsdp", "cache": False, "budget": "100%", **options}
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    return memplan.optimize(module, first, loss_fn=squares, optimizer=optimizer, **chosen)


def by_plan(make: Callable[[], nn.Module], layout: Layout, rank: int, *, wraps: bool) -> list[Tensor]:
    torch.manual_seed(1)
    module = make()
    if wraps:
        fully_shard(module, mesh=mesh_of(2))
    step = planned(module, layout(rank, 0), **({} if wraps else {"shard": True}))
    return trained(module, lambda number: step(**layout(rank, number)))


def differences(rank: int) -> dict[str, str | list[bool]]:
    """Return by name which losses and weights of each case are FSDP2's."""
    found: dict[str, str | list[bool]] = {}
    for number, (name, (make, layout)) in enumerate(CASES.items()):
        known = by_fsdp(make, layout, rank)
        try:
            own = by_plan(make, layout, rank, wraps=number % 2 == 0)
        except memplan.MemplanError as error:
            found[name] = str(error)
        else:
            found[name] = [torch.equal(one, other) for one, other in zip(known, own, strict=True)]
    return found


def test_ranks_train_as_by_fsdp2_whatever_the_layouts_of_their_batches(tmp_path: Path) -> None:
    for found in ranks(differences, tmp_path):
        assert not isinstance(found, str), found
        assert {name: each for name, each in found.items() if each != [True] * len(each)} == {}


def refusals(rank: int) -> list[tuple[str, list[bool]]]:
    """Return the lines of refusals, and whether following them gives FSDP2's losses and weights."""
    found = list[tuple[str, list[bool]]]()
    for make, layout in REFUSED.values():
        with pytest.raises(memplan.MismatchError) as refused:
            by_plan(make, layout, rank, wraps=False)

        def followed(rank: int, step: int, layout: Layout = layout) -> Batch:
            return {name: each.contiguous().detach() for name, each in layout(rank, step).items()}

        both = by_fsdp(make, followed, rank), by_plan(make, followed, rank, wraps=True)
        found.append((str(refused.value), [torch.equal(*pair) for pair in zip(*both, strict=True)]))
    return found


def test_layouts_that_change_the_operations_are_named_with_a_cure(tmp_path: Path) -> None:
    for found in ranks(refusals, tmp_path):
        for (line, equal), expected in zip(found, REFUSED, strict=True):
            assert expected in line
            assert all(equal), line


class OfRank(Rows):
    """Two layers, after an operation that rank 1 alone has. apart: whether forward leaves that out."""

    apart = False

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.sin() if dist.get_rank() and not self.apart else x)


def by_rank(rank: int) -> tuple[list[str], list[bool]]:
    """Return the refusals of ranks that run other operations, or have another module, and what is equal of
    trainings that follow them."""
    lines = list[str]()
    for make in (OfRank, lambda: Many() if rank else Rows()):
        with pytest.raises(memplan.MismatchError) as refused:
            by_plan(make, lambda rank, step: {"x": drawn(2, 8, seed=step)}, rank, wraps=False)
        lines.append(str(refused.value))
    OfRank.apart = True

    def layout(rank: int, step: int) -> Batch:
        x = drawn(2, 8, seed=step)
        return {"x": x.sin() if rank else x}

    both = by_fsdp(OfRank, layout, rank), by_plan(OfRank, layout, rank, wraps=True)
    return lines, [torch.equal(*pair) for pair in zip(*both, strict=True)]


def test_ranks_that_do_other_things_are_refused_with_what_helps(tmp_path: Path) -> None:
    for found in ranks(by_rank, tmp_path):
        assert not isinstance(found, str), found
        lines, equal = found
        for line in lines:
            assert line.startswith("ranks 0 and 1 differ in the operations of an iteration, "), line
            assert line.endswith(
                "Give all ranks the same module, and leave out of forward what only some ranks do"
            )
        assert all(equal)


def each_its_own(rank: int) -> list[bool]:
    """Train under DistributedDataParallel, each rank with its own plan, by operations of its own."""
    found = list[bool]()
    for make, layout in ((Images, channels), (Flat, turned)):
        runs = list[list[Tensor]]()
        for plans in (False, True):
            torch.manual_seed(1)
            module = nn.parallel.DistributedDataParallel(make())
            optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
            chosen: dict[str, Any] = {"solver": "store-all", "budget": "100%", "cache": False}
            step = memplan.optimize(module, layout(rank, 0), loss_fn=squares, **chosen) if plans else None

            def run(
                number: int,
                step: Any = step,
                module: Any = module,
                optimizer: Any = optimizer,
                layout: Layout = layout,
            ) -> Tensor:
                given = layout(rank, number)
                loss = squares(module(**given)) if step is None else step(**given)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            runs.append(trained(module, run))
        found += [torch.equal(*pair) for pair in zip(*runs, strict=True)]
    return found


def test_under_ddp_ranks_run_their_own_operations(tmp_path: Path) -> None:
    for found in ranks(each_its_own, tmp_path):
        assert found == [True] * len(found)
