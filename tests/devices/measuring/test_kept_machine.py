"""This machine measured once, kept in the cache by computer, card and driver, and taken for `auto`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import memplan
import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.host_capacity import host_memory
from memplan.devices.measuring import kept_machine as kept
from memplan.devices.measuring.this_machine import Measured, device_room
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import save_graph
from memplan.graphs.folders.cache import cache_folder
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine, Updates
from memplan.training.options import Options
from not_none import not_none
from simulated_device.device import SimulatedDevice
from torch import nn

MEASURED = Machine(2**33, 2**34, links=Links(50e9, 55e9), updates=Updates(150e9, 2e9), pinned=2**32)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were measured, in a cache that is empty at first."""
    done: list[str] = []

    def measure(device: str, report: Callable[[str], None]) -> Measured:
        report("measuring copies")
        done.append(device)
        return Measured(MEASURED, device, (), ())

    monkeypatch.setattr(kept, "measure_machine", measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return done


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a GPU."""
    own = kept.kept_machine
    monkeypatch.setattr(kept, "best_device", lambda: "cuda")
    monkeypatch.setattr(kept, "kept_machine", lambda _device, report: own("cpu", report))


def test_it_is_measured_once(measured: list[str]) -> None:
    first, second = kept.kept_machine("cpu"), kept.kept_machine("cpu")
    assert measured == ["cpu"]
    assert (first.is_new, second.is_new) == (True, False)
    assert first.machine == second.machine
    memory = host_memory().bytes
    assert first.machine == replace(MEASURED, device_capacity=memory, host_capacity=memory)
    assert "measured in" in first.line
    assert "kept in" in first.line
    assert "measured on 20" in second.line


def test_another_driver_is_another_machine(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept.kept_machine("cpu")
    monkeypatch.setattr(Cpu, "surroundings", lambda _self: {"driver": "580.1/beta"})
    kept.kept_machine("cpu")
    monkeypatch.setattr(Cpu, "name", lambda _self: "NVIDIA H200")
    line = kept.kept_machine("cpu").line
    assert len(measured) == 3
    assert line.endswith("-NVIDIA-H200-580.1-beta.yaml")


def test_a_file_that_is_damaged_is_measured_anew(measured: list[str]) -> None:
    kept.kept_machine("cpu")
    (file,) = not_none(cache_folder()).glob("machines/*.yaml")
    file.write_text("links: {d2h: fast}")
    assert kept.kept_machine("cpu").is_new
    assert not kept.kept_machine("cpu").is_new
    assert len(measured) == 2


def test_a_cache_that_cannot_be_written(measured: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert "not kept" in kept.kept_machine("cpu").line
    assert kept.kept_machine("cpu").is_new


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_measure(measured: list[str]) -> None:
    with pytest.raises(InputError, match="measures the links of a GPU, and PyTorch finds none here"):
        memplan.optimize(nn.Linear(2, 2), torch.ones(1, 2), budget="100%", machine="auto")
    assert not measured


@pytest.mark.usefixtures("with_gpu")
def test_optimize_plans_for_it_and_says_once_where_it_is(measured: list[str]) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
    with pytest.warns(UserWarning, match="machine auto: cpu, measured in .*, kept in"):
        options = Options(budget="100%", machine="auto")
    assert options.machine == replace(MEASURED, device_capacity=None, host_capacity=host_memory().bytes)
    with warnings.catch_warnings(action="error"):
        step = memplan.optimize(
            module,
            x,
            machine="auto",
            loss_fn=lambda y: y.sum(),
            budget="100%",
            solver="store-all",
            cache=False,
            states=0,
        )
    assert torch.equal(step(x), module(x).sum())
    assert len(measured) == 1


@pytest.mark.usefixtures("with_gpu")
def test_commands_take_it(measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(4), Path("g.json"))
    command = ["solve", "g.json", "--machine", "auto", "--solver", "store-all", "-o", "s.json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.stderr
    assert "machine auto: cpu, measured in" in done.stderr
    assert json.loads(Path("s.json").read_text())["machine"]["links"]["d2h"] == 50e9
    done = CliRunner().invoke(main, ["check", "s.json", "--graph", "g.json", "--machine", "auto"])
    assert done.exit_code == 0, done.stderr
    assert "measured on 20" in done.stderr
    assert len(measured) == 1


def test_the_room_of_a_device_is_what_this_process_has_of_it_too() -> None:
    device = SimulatedDevice(capacity=64 * 2**20, constant=2**20)
    empty = device_room(device)
    tensor = device.room(2**22)
    assert empty == device_room(device) == 63 * 2**20
    del tensor
    device.synchronize()
