"""Hooks of saved tensors that change no value are planned as without them, others are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import memplan
import pytest
import torch
from memplan.torch_support.torch_saved_hooks import (
    hooks_of_saved_tensors,
    preserve_values,
    preserving_hooks_left_out,
)
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Around = Callable[[], AbstractContextManager[Any]]


class InFiles(saved_tensors_hooks):
    """Keeps what backward needs in files, as PyTorch's tutorial on saved tensors does."""

    def __init__(self) -> None:
        folder = TemporaryDirectory()

        def pack(tensor: Tensor) -> Path:
            path = Path(folder.name) / str(len(list(Path(folder.name).iterdir())))
            torch.save(tensor, path)
            return path

        super().__init__(pack, torch.load)


class Large(saved_tensors_hooks):
    """Keeps large tensors in half precision: those of the model, not those that are tried."""

    def __init__(self) -> None:
        def pack(tensor: Tensor) -> Tensor:
            return tensor.half().float() if tensor.numel() > 1 << 15 else tensor

        super().__init__(pack, lambda tensor: tensor)


def _raising(_tensor: Tensor) -> Tensor:
    raise RuntimeError


PRESERVING: dict[str, Around] = {
    "save_on_cpu": save_on_cpu,
    "files": InFiles,
    "identity": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "an offload of one's own": lambda: saved_tensors_hooks(
        lambda x: (x.device, x.cpu()), lambda x: x[1].to(x[0])
    ),
    "bits as bytes": lambda: saved_tensors_hooks(
        lambda x: (x.dtype, x.contiguous().view(torch.uint8)), lambda x: x[1].view(x[0])
    ),
}
CHANGING: dict[str, Around] = {
    "half": lambda: saved_tensors_hooks(lambda x: (x.dtype, x.half()), lambda x: x[1].to(x[0])),
    "another dtype": lambda: saved_tensors_hooks(lambda x: x, Tensor.double),
    "another object": lambda: saved_tensors_hooks(lambda x: x, cast("Any", Tensor.tolist)),
    "zeros": lambda: saved_tensors_hooks(torch.zeros_like, lambda x: x),
    "an error": lambda: saved_tensors_hooks(lambda x: x, _raising),
}


class Net(nn.Module):
    def __init__(self, around: Around, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            with self.around():
                x = x + torch.tanh(layer(x))
        return (x * x).mean()


def _hooks(around: Around) -> Any:
    with around():
        return hooks_of_saved_tensors()


def _gradients(module: nn.Module) -> list[Tensor]:
    return [weight.grad for weight in module.parameters() if weight.grad is not None]


@pytest.mark.parametrize("name", [*PRESERVING, *CHANGING])
def test_hooks_are_told_apart(name: str) -> None:
    state = torch.get_rng_state()
    around = {**PRESERVING, **CHANGING}[name]
    assert preserve_values(_hooks(around)) == (name in PRESERVING)
    assert torch.equal(state, torch.get_rng_state())


def test_contexts_within_each_other_are_left_in_their_order() -> None:
    with preserving_hooks_left_out():
        with CHANGING["half"]() as _, save_on_cpu():
            outer = hooks_of_saved_tensors()
            with CHANGING["zeros"](), save_on_cpu():
                inner = hooks_of_saved_tensors()
            assert hooks_of_saved_tensors() == outer != inner
        assert hooks_of_saved_tensors() is None
    with save_on_cpu():
        assert hooks_of_saved_tensors() is not None


@pytest.mark.parametrize("name", [name for name in PRESERVING if name != "files"])
def test_a_module_with_hooks_that_preserve_values_trains_bitwise(name: str) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    planned, eager = Net(PRESERVING[name]), Net(PRESERVING[name])
    step = memplan.optimize(planned, x, budget="100%", solver="rotor", states=0)
    for _ in range(2):
        step(x).backward()
        eager(x).backward()
    assert all(map(torch.equal, _gradients(planned), _gradients(eager)))


@pytest.mark.parametrize("around", [CHANGING["half"], InFiles])
def test_a_module_with_other_hooks_is_refused(around: Around) -> None:
    """Those that change values, and in a module those that look at files, as all of its code."""
    with pytest.raises(memplan.TraceError, match=r"saved_tensors_hooks.*switch that off"):
        memplan.optimize(Net(around), torch.ones(8, 16), budget="100%", states=0)


def test_a_plan_made_within_hooks_leaves_them_on() -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    planned, eager = Net(nullcontext), Net(nullcontext)
    with InFiles():
        before = hooks_of_saved_tensors()
        step = memplan.optimize(planned, x, budget="100%", solver="rotor", states=0)
        assert hooks_of_saved_tensors() == before
        step(x).backward()
        eager(x).backward()
    assert all(map(torch.equal, _gradients(planned), _gradients(eager)))


def test_a_planned_module_in_a_checkpoint_is_refused_without_a_second_run() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    part, calls = memplan.optimize_module(Net(nullcontext), x, budget="100%", solver="rotor"), list[int]()

    def called(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return part(x)

    with pytest.raises(memplan.MismatchError, match="within a checkpoint"):
        checkpoint(called, x, use_reentrant=False)
    assert calls == [0]


def test_a_planned_module_is_called_within_hooks() -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    planned, eager = Net(nullcontext), Net(nullcontext)
    part = memplan.optimize_module(planned, x, budget="100%", solver="rotor")
    with InFiles():
        (part(x) * 2).backward()
        (eager(x) * 2).backward()
        assert hooks_of_saved_tensors() is not None
    assert all(map(torch.equal, _gradients(planned), _gradients(eager)))


def test_a_plan_is_not_made_within_hooks_that_change_values() -> None:
    with CHANGING["half"](), pytest.raises(memplan.TraceError, match=r"saved_tensors_hooks.*switch that off"):
        memplan.optimize(Net(nullcontext), torch.ones(8, 16), budget="100%", states=0)
    assert hooks_of_saved_tensors() is None


def test_a_step_within_hooks_that_preserve_values_is_eager_pytorchs() -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    planned, eager = Net(nullcontext), Net(nullcontext)
    step = memplan.optimize(planned, x, budget="100%", solver="rotor", states=0)
    with InFiles():
        step(x).backward()
        eager(x).backward()
    assert all(map(torch.equal, _gradients(planned), _gradients(eager)))


def test_hooks_that_change_what_was_not_tried_are_found_by_the_comparison() -> None:
    x = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
    step = memplan.optimize(Net(Large), x, budget="100%", solver="rotor", states=0)
    with pytest.raises(memplan.DifferenceError):
        step(x)


def test_no_hooks_are_no_hooks() -> None:
    assert _hooks(nullcontext) is None


@pytest.mark.scripts
def test_checkpoints_of_transformers_on_the_host_are_planned_as_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "is_available", lambda: False)  # PyTorch can not pin without a GPU
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    words = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(1))
    losses = list[Tensor]()
    for planned in (False, True):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).train()
        model.activation_checkpointing_enable(offload=True)
        batch = {"input_ids": words, "labels": words}
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = memplan.optimize(model, batch, budget="100%", solver="rotor") if planned else None
        for _ in range(3):
            loss = step(batch) if step else model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss)
    assert torch.equal(*losses)
