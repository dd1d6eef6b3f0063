"""Checkpoints of sharded training: saved on some ranks, loaded on others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from ranks import ranks
from sharded_models import batch, layers, make
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

pytestmark = pytest.mark.scripts

BEFORE, AFTER = 3, 2
"""Steps before the checkpoint, and after it."""


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def planned(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: int) -> Any:
    return memplan.optimize(
        module,
        batch("gpt2", rank, 0),
        budget="80%",
        optimizer=optimizer,
        shard=init_device_mesh("cpu", (size,)),
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


def saves(rank: int, size: int, folder: str) -> dict[str, Tensor]:
    module = make("gpt2")
    optimizer = adamw(module)
    step = planned(module, optimizer, rank, size)
    for number in range(BEFORE):
        step(**batch("gpt2", rank, number))
    model, states = get_state_dict(module, optimizer)
    save({"model": model, "states": states}, checkpoint_id=folder)
    return values(module, optimizer)


def goes_on(rank: int, size: int, folder: str, how: str) -> list[dict[str, Tensor]]:
    """Load the checkpoint, and return the values then and some steps later."""
    torch.manual_seed(1)
    module = make("gpt2")
    optimizer = adamw(module)
    if how == "fsdp2":
        mesh = init_device_mesh("cpu", (size,))
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
