"""Checkpoints of sharded training: saved on some ranks, loaded on others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.training.checkpoints import tensor_file
from memplan.training.checkpoints.sharded_holding import ShardedHolding
from ranks import ranks
from sharded_models import batch, layers, make
from sharded_training import Size, mesh_of
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

pytestmark = pytest.mark.scripts

BEFORE, AFTER = 3, 2
"""Steps before the checkpoint, and after it."""


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def planned(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: Size) -> Any:
    return memplan.optimize(
        module,
        batch("gpt2", rank, 0),
        budget="80%",
        optimizer=optimizer,
        shard=mesh_of(size),
        solver="joint",
        time_limit=1,
        cache=False,
    )


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def values(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights and states, each whole."""
    found = {name: whole(each) for name, each in module.state_dict().items()}
    for number, row in optimizer.state_dict()["state"].items():
        found |= {f"{number}.{name}": whole(each) for name, each in row.items()}
    return found


def trained(rank: int, size: Size) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    module = make("gpt2")
    optimizer = adamw(module)
    step = planned(module, optimizer, rank, size)
    for number in range(BEFORE):
        step(**batch("gpt2", rank, number))
    return module, optimizer, step


def saves(rank: int, size: Size, folder: str) -> dict[str, Tensor]:
    module, optimizer, _step = trained(rank, size)
    model, states = get_state_dict(module, optimizer)
    save({"model": model, "states": states}, checkpoint_id=folder)
    return values(module, optimizer)


def saves_itself(rank: int, size: Size, folder: str) -> dict[str, Tensor]:
    module, optimizer, step = trained(rank, size)
    torch.manual_seed(10 + rank)
    step.save(folder, extra={"number": BEFORE})
    return values(module, optimizer)


def loads_itself(rank: int, size: Size, folder: str, *, shard: bool = True) -> list[Any]:
    """Load what ranks have saved, and return the values then and some steps later, and a random number."""
    torch.manual_seed(1 + rank)
    module = make("gpt2")
    optimizer = adamw(module)
    step = planned(module, optimizer, rank, size) if shard else alone(module, optimizer)
    torch.manual_seed(1 + rank)
    assert step.load(folder) == {"number": BEFORE}
    drawn = torch.randn(3)
    found = [values(module, optimizer)]
    for number in range(BEFORE, BEFORE + AFTER):
        step(**batch("gpt2", rank, number))
    return [*found, values(module, optimizer), drawn]


def alone(module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    given = batch("gpt2", 0, 0)
    return memplan.optimize(module, given, budget="100%", optimizer=optimizer, time_limit=1, cache=False)


def fails_to_save(rank: int, folder: str) -> list[Any]:
    """Save; fail to while rank 0 writes, and load what is there; differ in what is saved."""
    module = make("gpt2")
    optimizer = adamw(module)
    step = planned(module, optimizer, rank, 2)
    step(**batch("gpt2", rank, 0))
    step.save(folder, extra={"number": 1})
    told: list[Any] = []
    for at_tensor in (3, 60):
        step(**batch("gpt2", rank, 1))
        told.append(said(partial(FailingDisk(at_tensor), step, folder)))
        told.append(step.load(folder)["number"])
    if rank:
        optimizer.state[next(iter(module.parameters()))]["more"] = torch.zeros(3)
    return [*told, said(lambda: step.save(folder)), len(list(Path(folder).iterdir()))]


def said(call: Callable[[], None]) -> str:
    with pytest.raises(memplan.MemplanError) as error:
        call()
    return str(error.value)


class FailingDisk:
    """A disk that is full when a file's tensor of this number is written."""

    def __init__(self, number: int) -> None:
        self._left, self._own = number, tensor_file._pieces

    def __call__(self, step: Any, folder: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tensor_file, "_pieces", self._pieces)
            step.save(folder)

    def _pieces(self, tensor: Tensor) -> Iterator[Tensor]:
        self._left -= 1
        if not self._left:
            raise OSError(28, "No space left on device")
        return self._own(tensor)


def dies_in_a_save(rank: int, folder: str) -> Any:
    module = make("gpt2")
    step = planned(module, adamw(module), rank, 2)
    step(**batch("gpt2", rank, 0))
    if rank:
        seen = [0]
        own = ShardedHolding._sent

        def sent(holding: ShardedHolding, tensor: DTensor) -> Tensor:
            seen[0] += 1
            if seen[0] == 4:
                os._exit(1)
            return own(holding, tensor)

        ShardedHolding._sent = sent  # pyright: ignore[reportAttributeAccessIssue]
    step.save(folder)


def goes_on(rank: int, size: Size, folder: str, how: str) -> list[dict[str, Tensor]]:
    """Load the checkpoint, and return the values then and some steps later."""
    torch.manual_seed(1)
    module = make("gpt2")
    optimizer = adamw(module)
    if how == "fsdp2":
        mesh = mesh_of(size)
        for layer in layers(module):
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        optimizer = adamw(module)

        def step(**given: Tensor) -> None:
            module(**given).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        step = planned(module, optimizer, rank, size)
        if how == "later":  # full weights are there that are older than the checkpoint
            step(**batch("gpt2", rank, 77))
    model, states = get_state_dict(module, optimizer)
    load({"model": model, "states": states}, checkpoint_id=folder)
    set_state_dict(module, optimizer, model_state_dict=model, optim_state_dict=states)
    found = [values(module, optimizer)]
    for number in range(BEFORE, BEFORE + AFTER):
        step(**batch("gpt2", rank, number))
    return [*found, values(module, optimizer)]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert not isinstance(one, str), one
    assert not isinstance(other, str), other
    assert one.keys() == other.keys()
    return all(torch.equal(each, other[name]) for name, each in one.items())


def at(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_what_four_ranks_save_two_load_and_go_on_as_fsdp2(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves, at(tmp_path, "four"), 4, folder, size=4)[0]
    new = ranks(goes_on, at(tmp_path, "two"), 2, folder, "new")
    later = ranks(goes_on, at(tmp_path, "later"), 2, folder, "later")
    known = ranks(goes_on, at(tmp_path, "known"), 2, folder, "fsdp2")
    for found in (*new, *later, *known):
        assert same(found[0], saved)
        assert same(found[1], known[0][1])


def test_what_four_ranks_save_one_loads(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves, at(tmp_path, "four"), 4, folder, size=4)[0]
    (found,) = ranks(goes_on, at(tmp_path, "one"), 1, folder, "new", size=1)
    (known,) = ranks(goes_on, at(tmp_path, "known"), 1, folder, "fsdp2", size=1)
    assert same(found[0], saved)
    assert same(found[1], known[1])


def test_a_step_saves_on_four_ranks_and_loads_on_two_and_alone(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves_itself, at(tmp_path, "four"), 4, folder, size=4)[0]
    files = sorted(path.name for path in Path(folder).glob("*/*"))
    assert files == ["digests.json", "model.safetensors", "optimizer.safetensors", "rest.pt"]
    two = ranks(loads_itself, at(tmp_path, "two"), 2, folder)
    known = ranks(goes_on, at(tmp_path, "known"), 2, dcp(tmp_path), "fsdp2")
    for found in two:
        assert same(found[0], saved)
        assert same(found[1], known[0][1])
    assert not torch.equal(two[0][2], two[1][2])  # each goes on with its own random numbers
    assert same(loads_itself(0, 1, folder, shard=False)[0], saved)


def dcp(folder: Path) -> str:
    place = str(folder / "dcp")
    ranks(saves, at(folder, "dcp four"), 4, place, size=4)
    return place


def test_ranks_that_were_not_there_keep_their_random_numbers(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves_itself, at(tmp_path, "one"), 1, folder, size=1)[0]
    two = ranks(loads_itself, at(tmp_path, "two"), 2, folder)
    assert all(same(found[0], saved) for found in two)
    torch.manual_seed(2)
    assert torch.equal(two[1][2], torch.randn(3))
    assert not torch.equal(two[0][2], two[1][2])


def test_a_save_that_fails_on_one_rank_fails_on_all_and_the_next_one_works(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    first, second = ranks(fails_to_save, tmp_path, folder)
    full = f"{folder}: can't save: No space left on device"
    other = "ranks 0 and 1 differ in the tensors that they save: they must call this together"
    assert first == [full, 1, full, 1, other, 1]
    assert second == [f"rank 0 of 2 has failed: {full}", 1, f"rank 0 of 2 has failed: {full}", 1, other, 1]


def test_a_rank_that_dies_in_a_save_ends_the_others_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    first, second = ranks(dies_in_a_save, tmp_path, str(folder))
    assert second is None
    assert "rank 1 of 2 ended without an error" in first
    assert not list(folder.glob("[0-9]*"))


TWICE = (2, 2)
"""Two replicas of two ranks."""


def test_what_replicas_save_they_load_and_go_on_as_fsdp2(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves, at(tmp_path, "saved"), TWICE, folder, size=4)
    known = ranks(goes_on, at(tmp_path, "known"), TWICE, folder, "fsdp2", size=4)
    for found in ranks(goes_on, at(tmp_path, "new"), TWICE, folder, "new", size=4):
        assert same(found[0], saved[0])
        assert same(found[1], known[0][1])


def test_replicas_load_what_ranks_save_and_the_other_way_round(tmp_path: Path) -> None:
    ours, others = str(tmp_path / "replicas"), str(tmp_path / "ranks")
    ranked = ranks(saves, at(tmp_path, "ranks save"), 2, others)[0]
    for found in ranks(goes_on, at(tmp_path, "later"), TWICE, others, "later", size=4):
        assert same(found[0], ranked)
    saved = ranks(saves, at(tmp_path, "replicas save"), TWICE, ours, size=4)
    assert all(same(each, saved[0]) for each in saved)
    assert same(ranks(goes_on, at(tmp_path, "two"), 2, ours, "new")[1][0], saved[0])


def test_a_step_of_replicas_saves_each_tensor_once(tmp_path: Path) -> None:
    """Two ranks load it, and so do replicas: each goes on with its own random numbers."""
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves_itself, at(tmp_path, "replicas"), TWICE, folder, size=4)[0]
    two = ranks(loads_itself, at(tmp_path, "two"), 2, folder)
    assert all(same(found[0], saved) for found in two)
    again = ranks(loads_itself, at(tmp_path, "again"), TWICE, folder, size=4)
    assert all(same(found[0], saved) for found in again)
    assert all(same(found[1], again[0][1]) for found in again)
    assert len({float(found[2][0]) for found in again}) == 4


def test_a_step_of_replicas_loads_what_two_ranks_save(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = ranks(saves_itself, at(tmp_path, "two"), 2, folder)[0]
    four = ranks(loads_itself, at(tmp_path, "four"), TWICE, folder, size=4)
    assert all(same(found[0], saved) for found in four)
