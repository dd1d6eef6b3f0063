"""torchao's optimizers, whose states wrap codes and scales: they step after the plan, bit by bit."""

from __future__ import annotations

import copy
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.torch_support.torch_tensors import parts_of_wrapper
from memplan.training.checkpoints.optimizer_states import states_of
from memplan.updates.catalogue import is_planned
from optimizer_loops import STEPS, Make, batches, check_equal, network, planned, step_of, trained
from torch import Tensor, nn

torchao: Any = pytest.importorskip("torchao.optim")

pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]


def make_of(name: str) -> Make:
    return lambda module: getattr(torchao, name)(module.parameters(), lr=1e-2)


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights, numbers, and the bytes of codes, scales and tables."""
    found: dict[str, Any] = dict(module.state_dict())
    for name, weight in module.named_parameters():
        for state, value in optimizer.state[weight].items():
            parts: list[Tensor] = parts_of_wrapper(value) or [value]
            found |= {
                f"{name}.{state}.{i}": part.reshape(-1).view(torch.uint8) for i, part in enumerate(parts)
            }
    return found


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_ten_updates_are_those_of_the_optimizer(name: str, tmp_path: Path) -> None:
    """Clipped and accumulated, then from a checkpoint, into an optimizer that has states and one without."""
    make, own = make_of(name), network(width=64)
    module, *others = (copy.deepcopy(own) for _ in range(3))
    eager, optimizer = make(own), make(module)
    assert not is_planned(optimizer)
    step = step_of(module, optimizer, max_grad_norm=0.01, gradient_accumulation_steps=2)
    given = batches(own, 2 * STEPS)
    for batch in given[:STEPS]:
        step(batch)
    step.save(tmp_path / "saved")
    trained(own, eager, 0.01, 2)
    expected = state_of(own, eager)
    assert len(expected) > 6 + 3 * 6
    for other, before in zip(others, (0, 2), strict=True):
        last = make(other)
        going_on = step_of(other, last, max_grad_norm=0.01, gradient_accumulation_steps=2)
        for batch in given[:before]:
            going_on(batch)
        going_on.load(tmp_path / "saved")
        for batch in given[STEPS:]:
            going_on(batch)
        check_equal(expected, state_of(other, last))


def test_states_of_a_loop_are_loaded() -> None:
    make, own = make_of("AdamW8bit"), network(width=64)
    eager = make(own)
    trained(own, eager)
    other, saved = copy.deepcopy(own), BytesIO()
    torch.save(eager.state_dict(), saved)
    saved.seek(0)
    optimizer = make(other)
    optimizer.load_state_dict(torch.load(saved))
    trained(own, eager)
    planned(other, optimizer)
    check_equal(state_of(own, eager), state_of(other, optimizer))


def test_a_checkpoint_that_lacks_a_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_scales(optimizer: Any) -> Any:
        tensors, rows = states_of(optimizer)
        return {name: tensor for name, tensor in tensors.items() if not name.endswith("exp_avg.1")}, rows

    module = network(width=64)
    step = step_of(module, make_of("AdamW8bit")(module))
    step(batches(module)[0])
    monkeypatch.setattr("memplan.training.checkpoints.checkpoint.states_of", without_scales)
    step.save(tmp_path / "saved")
    with pytest.raises(InputError, match=r"of the state 2\.exp_avg a part is missing"):
        step.load(tmp_path / "saved")
