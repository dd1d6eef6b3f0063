"""Models with another batch: asked for by the parameter, or the example's rows repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.graphs.machines.presets import find_preset
from memplan.model.batches import takes_batch, with_batch
from memplan.model.file import load_model_file
from memplan.model.iteration import Iteration
from memplan.profiling.profile.estimate import estimate_file
from memplan.profiling.profile.fake_build import fake_build
from memplan.tracing.trace import trace
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

MODEL = """
import torch
from torch import nn

def build({parameter}):
    torch.manual_seed(0)
    batch = {batch}
    return nn.Linear(4, 3), (torch.arange(4.0 * batch).reshape(batch, 4),), torch.sum

def without_rows():
    return nn.Linear(4, 3), (), lambda output: output.sum()

def only_even(batch=2):
    if batch % 2:
        raise ValueError("batch must be even")
    return build()
"""


def model(tmp_path: Path, parameter: str, batch: str, entry: str = "build"):
    (tmp_path / "model.py").write_text(MODEL.format(parameter=parameter, batch=batch))
    return load_model_file(f"{tmp_path / 'model.py'}:{entry}")


@pytest.mark.parametrize(
    ("build", "takes"),
    [
        (lambda batch=1: batch, True),
        (lambda *, batch=1: batch, True),
        (lambda **options: options, False),
        (lambda *batch: batch, False),
        (lambda size=1: size, False),
    ],
)
def test_a_function_is_asked_only_for_what_it_takes(build, takes: bool) -> None:
    assert takes_batch(build) == takes


def first_input(iteration: Iteration) -> Tensor:
    """The first of the positional inputs."""
    x, *_rest = iteration.inputs
    assert isinstance(x, Tensor)
    return x


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 6, 8])
def test_repeated_and_asked_for_are_the_same_program(tmp_path: Path, batch: int) -> None:
    asked = model(tmp_path, "batch=2", "batch").build(batch)
    repeated = model(tmp_path, "", "3").build(batch)
    assert trace(asked).fingerprint == trace(repeated).fingerprint
    x = first_input(repeated)
    assert x.shape == (batch, 4)
    assert x.untyped_storage().nbytes() == 16 * batch
    rows = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(x, rows[torch.arange(batch) % 3])


def test_without_a_batch_the_example_stays(tmp_path: Path) -> None:
    assert first_input(model(tmp_path, "batch=2", "batch").build()).shape == (2, 4)
    assert first_input(model(tmp_path, "", "3").build()).shape == (3, 4)


def test_every_tensor_with_a_row_for_each_sample_changes() -> None:
    inputs = {
        "tokens": torch.zeros(3, 7, dtype=torch.int64),
        "more": [torch.zeros(3), {"mask": torch.zeros(7, 3)}],
        "scale": torch.tensor(2.0),
        "training": True,
        "pixels": torch.zeros(3, 2, requires_grad=True),
    }
    found: Any = with_batch(Iteration(nn.Identity(), inputs), 5).inputs
    assert found["tokens"].shape == (5, 7)
    assert found["more"][0].shape == (5,)
    assert found["more"][1]["mask"].shape == (7, 3)
    assert found["scale"].shape == ()
    assert found["training"] is True
    assert found["pixels"].shape == (5, 2)
    assert found["pixels"].is_leaf
    assert found["pixels"].requires_grad


def test_a_fake_model_has_a_fake_batch(tmp_path: Path) -> None:
    file = model(tmp_path, "", "3")
    iteration = fake_build(lambda: file.build(2**40))
    assert isinstance(first_input(iteration), FakeTensor)
    assert first_input(iteration).shape == (2**40, 4)


def test_an_estimate_grows_with_the_batch(tmp_path: Path) -> None:
    file, preset = model(tmp_path, "batch=2", "batch"), find_preset("a100")
    small, large = (estimate_file(file, preset, batch=batch) for batch in (2, 2**20))
    assert len(small.operations) == len(large.operations)
    assert large.tensors.bytes.sum() > 1e3 * small.tensors.bytes.sum()
    assert large.operations.time.sum() > small.operations.time.sum()


@pytest.mark.parametrize(
    ("entry", "batch", "line"),
    [
        ("without_rows", 4, "have no batch to change: give the function a parameter 'batch'"),
        ("only_even", 3, "only_even(batch=3) fails: ValueError: batch must be even"),
    ],
)
def test_a_batch_that_cannot_be_is_one_line(tmp_path: Path, entry: str, batch: int, line: str) -> None:
    with pytest.raises(InputError) as error:
        model(tmp_path, "batch=2", "batch", entry).build(batch)
    assert line in str(error.value)
    assert "model.py" in str(error.value)
    assert "\n" not in str(error.value)
