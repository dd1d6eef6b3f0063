"""Surroundings of measurements on a GPU, read from an nvidia-smi and a PyTorch that are simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from memplan.cli.planned_step import other_card
from memplan.devices.device import card
from memplan.devices.device.choice import device_of
from small_graphs import small_graph

Install = Callable[[str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns a function that installs an nvidia-smi with this body."""
    card._driver.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card, {device}")
    properties = SimpleNamespace(uuid="1234-5678")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)

    def install(body: str) -> None:
        file = tmp_path / "nvidia-smi"
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    return install


ANSWERS = """
[ "$1" = --id=GPU-1234-5678 ] || exit 1
case "$2" in
    --query-gpu=driver_version) echo 580.159.04 ;;
    --query-gpu=clocks.sm) echo 1980 ;;
esac
"""


def test_what_the_driver_says(smi: Install) -> None:
    smi(ANSWERS)
    cuda = device_of("cuda:1")
    found = cuda.surroundings()
    assert (found["name"], found["driver"]) == ("a card, cuda:1", "580.159.04")
    assert found["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert cuda.clock_rate() == 1_980_000_000


@pytest.mark.parametrize("body", [None, "exit 9", "echo '[N/A]'", "exit 0"], ids=str)
def test_a_driver_that_says_nothing(smi: Install, body: str | None) -> None:
    if body is not None:
        smi(body)
    cuda = device_of("cuda:0")
    assert cuda.clock_rate() is None
    assert ("driver" in cuda.surroundings()) == (body == "echo '[N/A]'")


def test_flags_are_those_of_the_moment(smi: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = device_of("cuda:0")
    before = cuda.surroundings()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    assert card.differences(before, cuda.surroundings()) == "cudnn_benchmark False (here True)"


def test_the_cpu_has_none() -> None:
    cpu = device_of("cpu")
    assert (cpu.surroundings(), cpu.clock_rate()) == ({}, None)


def test_another_driver_is_named_where_a_schedule_runs() -> None:
    then = {"name": "H100", "driver": "580.1", "clock": 1_980_000_000, "cudnn_benchmark": False}
    here = {"name": "H100", "driver": "590.2", "cudnn_benchmark": False}
    graph = replace(small_graph(Random(0)), source={"card": then})
    assert "measured with driver 580.1 (here 590.2): times may differ" in str(other_card(graph, here))
    assert other_card(graph, then) is None
    assert other_card(replace(graph, source={}), here) is None
