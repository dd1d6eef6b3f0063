"""benchmarks/gpu/run, on the simulated device: its rows, and a run that goes on where one stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[1] / "benchmarks" / "gpu" / "run"


def run(output: Path, *asked: str) -> subprocess.CompletedProcess[str]:
    call = [COMMAND, "--simulated", *asked, "--output", output]
    return subprocess.run(call, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)


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
