"""benchmarks/gpu/run, on the simulated device: its rows, and a run that goes on where one stopped."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.devices.device.choice import device_of

COMMAND = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run"


def run(output: Path, *asked: str) -> subprocess.CompletedProcess[str]:
    call = [COMMAND, "--simulated", *asked, "--output", output]
    return subprocess.run(call, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """Import a module of this benchmark: others have modules of these names."""
    monkeypatch.syspath_prepend(COMMAND.parent)
    for file in COMMAND.parent.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return importlib.import_module(name)


@pytest.mark.scripts
def test_the_table_of_a_small_model(tmp_path: Path) -> None:
    output = tmp_path / "table.md"
    asked = ("--models", "unet", "--ways", "save_on_cpu", "--seconds", "3", "--solver", "offload-greedy")
    done = run(output, *asked, "--shares", "0.6")
    assert done.returncode == 0, done.stderr
    profiled, own, baseline = map(json.loads, output.with_suffix(".jsonl").read_text().splitlines())
    assert 0.9 < baseline["peak"] / profiled["peak"] < 1.1
    assert own["fits"], own
    assert own["peak"] <= own["planned_arena"] <= own["budget"]
    assert own["budget"] == int(0.6 * profiled["peak"])
    assert "Simulated device, small models" in output.read_text()
    recomputed = run(output, *asked, "--minutes", "0", "--shares", "0.6,0.4")
    assert recomputed.returncode == 0
    lines = output.read_text().splitlines()
    assert [line[:24] for line in lines if line.startswith("| unet")] == [
        "| unet | 100% | profile ",
        "| unet | 60% | ours | ye",
        "| unet | 100% | plain | ",
    ]
    assert "- not reached in the time: unet 40% ours." in lines
    assert any(line.endswith("same memory: unet 60% save_on_cpu, unet 40% save_on_cpu.") for line in lines)


@pytest.mark.scripts
def test_a_typo_is_told_with_what_there_is(tmp_path: Path) -> None:
    done = run(tmp_path / "table.md", "--models", "gpt3")
    assert done.returncode == 2
    assert "gpt3: there are gpt2," in done.stderr


def test_limits_grow_with_the_model_and_the_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own modules are in its folder, not in a package."""
    rows = module(monkeypatch, "rows")
    models = module(monkeypatch, "models")

    def limit(model: str, way: str, budgets: int = 1) -> float:
        asked = {"simulated": False, "model": model, "way": way, "shares": [0.5] * budgets, "seconds": 20}
        return rows.limit_of(asked)

    assert models.OPERATIONS.keys() == models.LARGE.keys()
    assert limit("gpt2", "plain") < limit("gpt2", "compile") < limit("gpt2-xl", "compile")
    assert limit("gpt2", "ours", 4) - limit("gpt2", "ours", 3) == pytest.approx(20 + 771 * rows.SHARE_SECONDS)
    assert limit("gpt2", "ours", 4) < 360 < limit("gpt2-xl", "ours", 4) < 900


def test_a_cap_has_room_for_one_segment_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's allocator rounds a request up to a segment before it looks at the cap."""
    row = module(monkeypatch, "row")
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**34, 2**34))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    row._cap(device_of("cuda:0"), 2**33)
    row._cap(device_of("cuda:0"), None)
    assert shares == [0.5 + 22 * 2**20 / 2**34, 1.0]


@pytest.mark.scripts
def test_cuda_tests_are_collected_quickly_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = module(monkeypatch, "rows")
    call = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "--collect-only", *rows.CUDA_TESTS]
    done = subprocess.run(call, cwd=COMMAND.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    counts = [int(line.rpartition(": ")[2]) for line in done.stdout.splitlines() if ".py: " in line]
    assert sum(counts) >= 60
