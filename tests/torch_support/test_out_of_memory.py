"""A planning that runs out of memory: its own error, with advice that works."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs
from memplan.tracing import output_layouts
from memplan.training.plans import front_end
from torch import Tensor, nn

OPTIONS: dict[str, Any] = {"budget": "100%", "cache": False, "states": 0}
MODEL = """
import torch
from torch import nn

class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = x * self.weight
        return (x[:, None] - x[None, :]).square().mean()

def build():
    return Distances(), (torch.ones(2**20),)
"""
"""A batch whose distances take 4 TiB."""


def distances() -> tuple[nn.Module, Tensor]:
    found: dict[str, Any] = {}
    exec(MODEL, found)  # the command reads it as a file
    module, inputs = found["build"]()
    return module, inputs[0]


def test_an_operation_too_large_for_the_machine_is_named_and_a_smaller_batch_is_planned() -> None:
    module, x = distances()
    line = r"^out of memory: sub can't allocate memory: give a smaller batch .* \(.*4398046511104 bytes"
    with pytest.raises(memplan.OutOfMemoryError, match=line) as refused:
        memplan.optimize(module, x, **OPTIONS)
    assert not isinstance(refused.value, memplan.TraceError)
    other = pickle.loads(pickle.dumps(refused.value))
    assert (type(other), str(other)) == (memplan.OutOfMemoryError, str(refused.value))
    step = memplan.optimize(module, x[:8].clone(), **OPTIONS)
    step(x[:8].clone()).backward()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=repr)
def test_memory_that_ends_wherever_planning_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next batch is planned; in a training that has plans, eager PyTorch runs a batch that fits."""
    module, x = distances()
    x = x[:8].clone()
    step = memplan.optimize(module, x, **OPTIONS)

    def full(*_given: Any, **_named: Any) -> Any:
        raise error

    for owner, name in (
        (output_layouts, "results_of"),
        (SyntheticInputs, "calls"),
        (front_end, "trace"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(memplan.OutOfMemoryError, match=r"^out of memory: .* can't allocate memory"):
                memplan.optimize(module, x[:6], **OPTIONS)
    with monkeypatch.context() as patched:
        patched.setattr(output_layouts, "results_of", full)
        with pytest.warns(UserWarning, match="out of memory: .*batches like this one run as eager PyTorch"):
            assert torch.equal(step(x[:6]), module(x[:6]))
    assert torch.equal(step(x[:5]), module(x[:5]))
    assert len(step.plans) == 2


def test_the_command_ends_as_where_nothing_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    result = CliRunner().invoke(main, ["profile", "model.py"])
    assert result.exit_code == 3
    assert "can't allocate memory: give a smaller batch" in result.stderr
