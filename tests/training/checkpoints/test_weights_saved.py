"""What is saved while weights and states lie on the host or the disk is what plain PyTorch would save."""

from __future__ import annotations

import copy
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memplan
import numpy as np
import pytest
import safetensors.torch
import torch
from memplan.devices.storage.host_access import at_home_value
from memplan.devices.storage.offloaded import Offloaded
from memplan.graphs.errors import InputError, MismatchError
from memplan.graphs.machine import Links, Machine
from memplan.training.checkpoints import checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

MOVING: dict[str, Any] = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "budget": "75%"}


class Net(nn.Module):
    """Tied weights, a buffer that changes, dropout, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(12, 16), nn.Linear(16, 12, bias=False)
        self.out.weight = self.embed.weight
        self.inner = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2))
        self.back = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.back(self.inner(self.embed(x))))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randint(12, (8,)), torch.randint(12, (8,))


class Run:
    """moved: by a plan that has every weight on the host between its uses; else plain PyTorch."""

    def __init__(self, moved: bool, **options: Any) -> None:
        torch.manual_seed(0)
        self.module = Net()
        self.optimizer = torch.optim.AdamW(self.module.parameters(), 0.01, foreach=False)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        x, y = batch()
        self.loss = nn.functional.cross_entropy
        self.step = None
        if moved:
            options = {"optimizer": self.optimizer, **MOVING, **options}
            self.step = memplan.optimize(self.module, x, targets=y, loss_fn=self.loss, cache=False, **options)
        torch.manual_seed(1)

    def train(self, turns: int) -> list[Tensor]:
        losses: list[Tensor] = []
        for _turn in range(turns):
            x, y = batch()
            if self.step is not None:
                losses.append(self.step(x, targets=y))
            else:
                self.optimizer.zero_grad()
                loss = self.loss(self.module(x), y)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            self.schedule.step()
        return losses

    def offloaded(self) -> int:
        states = (value for row in self.optimizer.state.values() for value in row.values())
        return sum(isinstance(each, Offloaded) for each in (*self.module.parameters(), *states))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def through_torch(module: nn.Module, folder: Path) -> dict[str, Tensor]:
    torch.save(module.state_dict(), folder / "m.pt")
    return torch.load(folder / "m.pt")


def through_pickle(module: nn.Module, folder: Path) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False).state_dict()


def through_safetensors(module: nn.Module, folder: Path) -> dict[str, Tensor]:
    safetensors.torch.save_model(module, str(folder / "m.safetensors"))
    other = Net()
    safetensors.torch.load_model(other, str(folder / "m.safetensors"))
    return other.state_dict()


def through_distributed(module: nn.Module, folder: Path) -> dict[str, Tensor]:
    save({"model": module.state_dict()}, checkpoint_id=folder / "dcp")
    found = {"model": Net().state_dict()}
    load(found, checkpoint_id=folder / "dcp")
    return found["model"]


WAYS: list[Callable[[nn.Module, Path], dict[str, Tensor]]] = [
    through_torch,
    through_pickle,
    through_safetensors,
    through_distributed,
]


def test_plain_ways_save_the_true_values(tmp_path: Path) -> None:
    """As they are, which brings weights back to the device, and where they lie, which leaves them there."""
    baseline, own = Run(False), Run(True)
    assert own.step is not None
    for turn, way in enumerate(WAYS):
        for run in (baseline, own):
            torch.manual_seed(turn)
            run.train(1)
        moved = own.offloaded()
        assert moved > 10
        with own.step.state_on_cpu():
            assert same(way(own.module, tmp_path), baseline.module.state_dict())
            states = torch.load(saved(own.optimizer.state_dict()))
        assert own.offloaded() == moved
        assert same(by_index(states), by_index(baseline.optimizer.state_dict()))
        assert same(way(own.module, tmp_path), baseline.module.state_dict())
        assert own.offloaded() < moved


def saved(thing: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


def by_index(state: dict[str, Any]) -> dict[str, Tensor]:
    return {f"{i}.{name}": value for i, row in state["state"].items() for name, value in row.items()}


def test_what_is_written_at_home_is_what_training_goes_on_with(tmp_path: Path) -> None:
    """As torch.distributed.checkpoint.load does, in place."""
    baseline, own = Run(False), Run(True)
    own.train(2)
    assert own.step is not None
    moved = own.offloaded()
    with own.step.state_on_cpu():
        state = {"model": own.module.state_dict()}
        save({"model": baseline.module.state_dict()}, checkpoint_id=tmp_path)
        load(state, checkpoint_id=tmp_path)
    assert own.offloaded() == moved
    assert same(own.module.state_dict(), baseline.module.state_dict())


@pytest.mark.scripts
@pytest.mark.parametrize("before", [0, 2], ids=["into a new one", "where weights lie on the host"])
def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_ended(before: int, tmp_path: Path) -> None:
    baseline, first, second = Run(False), Run(True), Run(True)
    losses = baseline.train(6)
    assert first.step is not None
    assert second.step is not None
    torch.manual_seed(1)
    found = first.train(3)
    random.seed(5)
    np.random.seed(5)
    moved = first.offloaded()
    first.step.save(tmp_path / "c", extra={"schedule": first.schedule, "epoch": 7})
    assert first.offloaded() == moved
    drawn = random.random(), np.random.rand()
    second.train(before)
    at_home = second.offloaded()
    assert second.step.load(tmp_path / "c", extra={"schedule": second.schedule}) == {"epoch": 7}
    assert second.offloaded() == at_home
    assert (random.random(), np.random.rand()) == drawn
    found += second.train(3)
    assert all(torch.equal(one, other) for one, other in zip(found, losses, strict=True))
    assert same(second.module.state_dict(), baseline.module.state_dict())
    assert same(by_index(second.optimizer.state_dict()), by_index(baseline.optimizer.state_dict()))
    assert second.schedule.state_dict() == baseline.schedule.state_dict()
    weights = safetensors.torch.load_file(tmp_path / "c" / "00000001" / "model.safetensors")
    assert "out.weight" not in weights or "embed.weight" not in weights
    assert weights["back.weight"].shape == (16, 64)


def test_a_save_that_ends_anywhere_leaves_the_one_before_or_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its calls to the system fails; and what is left over then is gone with the next."""
    first, second = Run(False), Run(False)
    second.train(1)
    left = [0]

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return call(*arguments, **keywords)

        return run

    for place, name in (
        (os, "fsync"),
        (Path, "rename"),
        (Path, "mkdir"),
        (Path, "open"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(place, name, failing(getattr(place, name)))
    seen: set[int] = set()
    for number in range(1, 40):
        folder = tmp_path / f"{number}"
        checkpoint.save(folder, first.module, extra={"which": 1})
        left[0] = number
        try:
            checkpoint.save(folder, second.module, extra={"which": 2})
        except KeyboardInterrupt:
            pass
        else:
            break
        left[0] = 0
        found = Run(False)
        which = checkpoint.load(folder, found.module)["which"]
        seen.add(which)
        assert same(found.module.state_dict(), (first, second)[which - 1].module.state_dict())
    assert seen == {1, 2}
    left[0] = 0
    checkpoint.save(folder, second.module)
    assert [path.name for path in folder.iterdir()] == ["00000003"]


def test_refused_in_one_line(tmp_path: Path) -> None:
    run = Run(False)
    folder = tmp_path / "c"
    with pytest.raises(InputError, match="there is no checkpoint"):
        checkpoint.load(folder, run.module)
    with pytest.raises(InputError, match="extra can't be saved"):
        checkpoint.save(folder, run.module, extra={"me": run})
    assert not checkpoint.is_there(folder)
    checkpoint.save(folder, run.module)
    with pytest.raises(MismatchError, match="saved with no optimizer, and is loaded with one"):
        checkpoint.load(folder, run.module, run.optimizer)
    with pytest.raises(MismatchError, match="is not in the module"):
        checkpoint.load(folder, nn.Linear(3, 3))
    other = Net()
    other.back = nn.Linear(64, 16).to(torch.float64)
    with pytest.raises(MismatchError, match=r"back.weight is saved as \(16, 64\) of torch.float32"):
        checkpoint.load(folder, other)
    file = folder / "00000001" / "model.safetensors"
    before = copy.deepcopy(run.module.state_dict())
    for size in (3, 100, file.stat().st_size - 1):
        os.truncate(file, size)
        with pytest.raises(InputError, match=r"can't be read as tensors"):
            checkpoint.load(folder, run.module)
    assert same(run.module.state_dict(), before)


def test_weights_that_are_lost_are_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(True)
    assert run.step is not None
    run.train(1)
    run.step.save(tmp_path)
    plan = run.step.plans[0]
    plan._recovery._give_up()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(memplan.MemplanError, match="load the weights"):
        at_home_value(run.module.back.weight)
    with pytest.raises(memplan.MemplanError, match="load the weights"):
        run.step.save(tmp_path)
    run.step.load(tmp_path)
    baseline = Run(False)
    baseline.train(1)
    assert same(run.module.state_dict(), baseline.module.state_dict())
