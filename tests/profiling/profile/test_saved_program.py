"""Programs as JSON: the same when read back, and nothing that another document names is run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import load_model_file
from memplan.profiling.profile import saved_program
from memplan.profiling.profile.estimate import traced
from memplan.profiling.profile.saved_program import (
    UnsavableError,
    program_from_document,
    program_to_document,
)
from memplan.program.outputs import Output
from memplan.program.program import Program, Ref, Setting
from memplan.updates.choice import OptimizerChoice
from memplan.updates.rules import RULES

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Flatten())

    def forward(self, x):
        one, two = self.net(x).chunk(2, dim=1)
        table = torch.tensor([[1.0, float("nan")], [float("inf"), -0.0]], device=x.device)
        return (one * two).mean() + table.nan_to_num(posinf=1.0).sum()

def build(batch=2):
    return Model().to(memory_format=torch.channels_last), (torch.ones(batch, 3, 6, 6),), torch.sum
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    path = tmp_path_factory.mktemp("model") / "model.py"
    path.write_text(MODEL)
    made = traced(load_model_file(str(path)), 2, OptimizerChoice("adamw"), find_preset("rtx3060").gpu).program
    return replace(made, reads=None, used=None, host_part=None)


def test_it_is_the_same_when_read_back(program: Program) -> None:
    found = program_from_document(json.loads(json.dumps(program_to_document(program))))
    for one in fields(Program):
        if one.name != "constants":
            assert getattr(found, one.name) == getattr(program, one.name), one.name
    assert len(program.constants) == 1
    assert found.constants.keys() == program.constants.keys()


def test_a_call_of_several_views_stays_one(program: Program) -> None:
    shared = replace(program, views=dict.fromkeys(program.views, next(iter(program.views.values()))))
    found = program_from_document(json.loads(json.dumps(program_to_document(shared))))
    assert len(found.views) > 1
    assert len({id(call) for call in found.views.values()}) == 1


VALUES: list[Any] = [
    *(None, True, 7, -0.0, float("inf"), "text", 1 + 2j, [1, (2, [3.5])], {"a": [Ref(3)], 4: ()}),
    *(Setting(1, 0.5), torch.bfloat16, torch.strided, torch.channels_last, torch.device("cuda", 1)),
    *(torch.ops.aten.add.Tensor, torch.ops.aten.relu_.default, RULES["on_master"]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_arguments_of_all_kinds(value: Any) -> None:
    found = saved_program._read(json.loads(json.dumps(saved_program._written(value))))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, float("nan"), -0.0]),
        torch.arange(6).view(2, 3).t(),
        torch.tensor(True),
        torch.empty(0, 3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.ones(3, 1).expand(3, 4),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_constants(tensor: torch.Tensor) -> None:
    found = saved_program._read(json.loads(json.dumps(saved_program._written(tensor))))
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_what_only_python_can_hold_is_not_written(program: Program) -> None:
    for other in (
        replace(program, generators={("noise",): torch.Generator()}),
        replace(program, output=Output({}, (), dict)),
        replace(program, used=object()),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(UnsavableError):
            program_to_document(other)
    for value in (
        object(),
        print,
        torch.load,
        torch.Generator(),
        torch.nn.Parameter(torch.ones(1)),
        Path("x"),
    ):
        with pytest.raises(UnsavableError):
            saved_program._written([value])


FORGED: list[Any] = [
    ["operator", "load_library", "__func__", "__call__"],
    ["operator", "import_module", "__self__", "__dict__"],
    ["operator", "aten", "add", "__class__"],
    ["operator", "nothing", "is", "there"],
    ["torch", "load"],
    ["torch", "ops"],
    ["torch", "hub"],
    ["update", "print"],
    ["update", "__class__"],
    ["eval", "__import__('os').mkdir('planted')"],
    ["tensor", "load", 0, [1], [1], ""],
    ["tensor", "float32", 0, [1 << 40], [1], "AAAA"],
    ["tensor", "float32", 9, [1], [1], "AAAA"],
    ["tensor", "float32", -9, [1], [-1], "AAAA"],
    [["operator", "aten", "add", "Tensor"]],
]


@pytest.mark.parametrize("row", FORGED, ids=str)
def test_what_a_forged_document_names_is_not_there(row: list[Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((KeyError, TypeError, AttributeError, ValueError, RuntimeError)):
        saved_program._read(row)
    assert not list(tmp_path.iterdir())
