"""Operators in pieces in the forms that models give them: layouts, 16 bits, backward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_pieces import Checked
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs, signature
from memplan.model.iteration import Iteration, tensors_in
from memplan.profiling.splitting.operators import name_of
from memplan.program.program import Program
from memplan.tracing.trace import trace
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, Any, Callable[..., torch.Tensor]]

RANDOM = {"dropout_mask"}
COUPLED = {"tril", "repeat"}
"""They work along all of their dimensions."""


class InBfloat16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(*given, **named)


class Net(nn.Module):
    """Convolutions down and up again, as in a U-Net."""

    def __init__(self, norm: Callable[[int], nn.Module], mode: str) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.SiLU(), nn.MaxPool2d(2))
        self.deep = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=8), norm(8), nn.ReLU(), nn.AvgPool2d(1)
        )
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, bias=False)
        self.wide = nn.Upsample(scale_factor=2, mode=mode)
        self.last = nn.Conv2d(16, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.down(x)
        high = self.deep(low)
        return self.last(torch.cat([self.up(high), self.wide(low)], 1))


def classified(scores: torch.Tensor) -> torch.Tensor:
    target = scores.detach().argmax(1).roll(1, 0)
    return functional.cross_entropy(scores, target, label_smoothing=0.1)


def net(norm: Callable[[int], nn.Module], mode: str) -> Made:
    return Net(norm, mode), (torch.randn(3, 3, 8, 8),), classified


def language(name: str, half: bool = False, **more: Any) -> Made:
    hub = pytest.importorskip("transformers")
    sizes = {"vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
    module = getattr(hub, f"{name}ForCausalLM")(getattr(hub, f"{name}Config")(**sizes, **heads, **more))
    tokens = torch.randint(4, 200, (3, 8))
    return (
        InBfloat16(module) if half else module,
        {"input_ids": tokens, "labels": tokens},
        lambda made: made.loss,
    )


def gpt2(**more: Any) -> Made:
    hub = pytest.importorskip("transformers")
    config = hub.GPT2Config(vocab_size=200, n_embd=32, n_layer=2, n_head=4, n_positions=16, **more)
    tokens = torch.randint(4, 200, (3, 8))
    return hub.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}, lambda made: made.loss


MODELS: dict[str, Callable[[], Made]] = {
    "group norm": lambda: net(lambda channels: nn.GroupNorm(2, channels), "bilinear"),
    "batch norm": lambda: net(nn.BatchNorm2d, "nearest"),
    "instance norm": lambda: net(lambda channels: nn.InstanceNorm2d(channels, affine=True), "bicubic"),
    "encoder": lambda: (nn.TransformerEncoderLayer(16, 2, 32), (torch.randn(3, 4, 16),), torch.sum),
    "GPT-2": gpt2,
    "GPT-2, eager attention": lambda: gpt2(attn_implementation="eager", attn_pdrop=0.0),
    "Llama": lambda: language("Llama"),
    "Llama in 16 bits": lambda: language("Llama", half=True),
    "Gemma 2": lambda: language("Gemma2"),
}


def check(program: Program, residents: dict[int, torch.Tensor], checked: Checked) -> set[str]:
    """Check each form of a call, and return the names of those that did not split."""
    walk = SyntheticInputs(program, residents)
    seen: set[Any] = set()
    never: set[str] = set()
    for operation in program.operations:
        call = operation.call
        known = signature(program, call)
        if not operation.mutates and str(known) not in seen:
            seen.add(str(known))
            before = checked.split.total()
            bound = walk.call()
            checked.check(bound.func, bound.args, bound.keywords)
            large = max(program.storages[storage].bytes for storage in operation.writes) >= 1024
            if checked.split.total() == before and large:
                never.add(name_of(call) or getattr(call.target, "__name__", ""))
        walk.advance()
    return never


@pytest.mark.scripts
@pytest.mark.parametrize("name", MODELS)
def test_calls_of_models_in_pieces(name: str) -> None:
    torch.manual_seed(0)
    module, inputs, loss = MODELS[name]()
    iteration = Iteration(module, inputs, loss)
    program = trace(iteration)
    given, buffers = tensors_in(iteration.inputs), dict(module.named_buffers())
    residents = {value: given[key] for key, value in program.inputs.items()}
    residents |= {value: buffers[key] for key, value in program.buffers.items()} | dict(program.constants)
    checked = Checked(frozenset({*dir(torch.ops.aten)}))
    assert check(program, residents, checked) <= RANDOM | COUPLED
    assert len(checked.split) > 10
