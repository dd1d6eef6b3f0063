"""Sizing as Python calls it: figures as the command has them, without the command's packages."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.machine import Links, Machine
from memplan.graphs.machines.networks import find_network
from memplan.graphs.machines.presets import find_preset
from memplan.sizing.documents import document_of
from memplan.sizing.question import Room
from memplan.sizing.sizing import Sizes, Sizing
from memplan.sizing.subject import LoopOptions, Subject, open_subject

MODEL = """
import torch
from torch import nn

def build(batch=8):
    layer = lambda: nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    return nn.Sequential(*(layer() for _ in range(2))), (torch.ones(batch, 256),), torch.sum
"""
GPU, KEPT, LIMIT = find_preset("rtx3060"), 8_519_680, 60_000_000
RANK = replace(GPU.machine, links=Links(peers=find_network("pcie4", 4)))


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return opened()


def opened(loop: LoopOptions | None = None) -> Subject:
    words = "model.py", None, None, "adamw", "in-backward"
    return open_subject(*words, loop or LoopOptions(), lambda _line: None, cached=False)


def sized(subject: Subject, solver: str, rank: Machine | None = None) -> Sizes:
    room = Room(LIMIT, KEPT, 0)
    sizing = Sizing(subject, [(GPU, room)], rank=rank, batches=[8, 4096], solver=solver)
    return sizing.together([*sizing.results()])


def printed(solver: str, *arguments: object) -> dict[str, Any]:
    words = "size", "model.py", "--gpu", "rtx3060", "--solver", solver, "--batch", "8,4096", "--json"
    result = CliRunner().invoke(main, [*map(str, (*words, "--budget", LIMIT, *arguments))])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_one_gpu_has_the_figures_of_the_command(subject: Subject) -> None:
    sizes = sized(subject, "store-all")
    (found,) = sizes.results
    assert found.fastest is not None
    assert (found.gpus, found.policies, found.curve) == (1, {}, [])
    document = json.loads(json.dumps(document_of(sizes)))
    assert {**document, "page": None, "command": "size"} == printed("store-all")


def test_ranks_have_the_figures_of_the_command(subject: Subject) -> None:
    sizes = sized(subject, "fsdp", RANK)
    (found,) = sizes.results
    assert found.fastest is not None
    assert found.rate(found.fastest) == 4 * found.fastest.batch / (found.fastest.seconds or 0.0)
    document = json.loads(json.dumps(document_of(sizes)))
    assert {**document, "page": None, "command": "size"} == printed("fsdp", "--ranks", 4, "--link", "pcie4")


def test_what_ranks_can_not_have_is_refused(subject: Subject) -> None:
    room = Room(LIMIT, KEPT, 0)
    for one, gpus in (
        (subject, 2),
        (opened(LoopOptions(accumulate=2)), 1),
        (opened(LoopOptions(total=8)), 1),
    ):
        with pytest.raises(InputError, match="one kind of GPU, and one micro-batch per update"):
            Sizing(one, gpus * [(GPU, room)], rank=RANK)


def test_it_imports_neither_click_nor_rich() -> None:
    modules = "sizing", "answer", "documents"
    code = "".join(f"import memplan.sizing.{name}\n" for name in modules)
    code += "import sys; print([name for name in ('click', 'rich', 'memplan.cli') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
