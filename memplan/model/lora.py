"""LoRA: low-rank adapters on linear layers, with all else frozen.

    y = W x + b            becomes    y = W x + b + (alpha / r) · B (A x)        W and b are frozen

The same layers and operations as peft makes of `LoraConfig(r=…, target_modules="all-linear")`: all linear
layers but the output embeddings and the heads of classifiers, which are trained whole. Adapters of layers in
half precision are in float32, as peft's are.

Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv:2106.09685.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from .quantised import quantise

HEADS = ("classifier", "score", "qa_outputs")
"""Modules of a model that are trained whole: a new task has new ones."""
DOWN, UP = "lora_A", "lora_B"
_TEXT = re.compile(r"(?:r=)?(\d{1,5})(?:,targets=([\w.+]+))?")


class LowRank(NamedTuple):
    """Adapters. targets: last names of layers, like q_proj; empty for all linear layers."""

    rank: int
    targets: tuple[str, ...] = ()


def parse_low_rank(text: str) -> LowRank:
    """Parse 'r=16' or 'r=16,targets=q_proj+v_proj'. Raises InputError."""
    match = _TEXT.fullmatch(text.replace(" ", ""))
    if match is None or not int(match[1]):
        raise InputError(f"{text!r} is not a rank: write r=16, or r=16,targets=q_proj+v_proj")
    return LowRank(int(match[1]), tuple(match[2].split("+")) if match[2] else ())


class Adapted(nn.Module):
    """A linear layer with an adapter.

    base_layer: frozen. inputs, outputs: its widths.
    """

    def __init__(self, base_layer: nn.Module, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        weight: Any = base_layer.weight
        half = weight.dtype in (torch.float16, torch.bfloat16, torch.uint8)
        form = {"dtype": torch.float32 if half else weight.dtype, "device": weight.device}
        self.base_layer = base_layer
        self.lora_A = nn.Linear(inputs, rank, bias=False, **form)
        self.lora_B = nn.Linear(rank, outputs, bias=False, **form)
        self.scaling = 2.0  # alpha is 2 r; no number of the plan depends on it

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        adapted = self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype)))
        return (result + adapted * self.scaling).to(result.dtype)


def with_adapters(module: nn.Module, wanted: LowRank, quantize: str | None = None) -> None:
    """Add adapters to the linear layers of a module, and freeze the rest. Raises InputError.

    quantize: a kind of quantised.py for the weights of all linear layers but the output embeddings and heads.
    """
    linear, left = _linear_layers(module)
    if any(part in (DOWN, UP) for name in linear for part in name.split(".")):
        raise InputError("--lora: the model has adapters already: omit the option")
    targets = [name for name in linear if name not in left]
    if wanted.targets:
        targets = [name for name in linear if name.rpartition(".")[2] in wanted.targets]
    if not targets:
        there = sorted({name.rpartition(".")[2] for name in linear})
        known = f"its linear layers are named {', '.join(there)}" if there else "it has none"
        named = f" named {' or '.join(wanted.targets)}" if wanted.targets else ""
        raise InputError(f"--lora: the model has no linear layer{named} to adapt: {known}")
    heads = _heads(module)
    # Before the adapters are there: theirs stay trainable.
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(_within(name, heads) and not wanted.targets)
    if quantize is not None:
        quantise_linear_layers(module, quantize)
    for name in targets:
        path, _, last = name.rpartition(".")
        base = module.get_submodule(name)
        setattr(module.get_submodule(path), last, Adapted(base, *linear[name], wanted.rank))


def quantise_linear_layers(module: nn.Module, kind: str, dtype: torch.dtype | None = None) -> None:
    """Replace all linear layers but the output embeddings and heads by such with weights in 4 bits.

    kind: of quantised.py. dtype: that they compute in, by default that of each weight.
    """
    linear, left = _linear_layers(module)
    quantise(module, {name: widths for name, widths in linear.items() if name not in left}, kind, dtype)


def _linear_layers(module: nn.Module) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """Return the widths of each linear layer by name, and the names of output embeddings and heads."""
    linear = {name: widths for name, one in module.named_modules() if (widths := _widths(one)) is not None}
    heads, output = _heads(module), _output_embeddings(module)
    return linear, {name for name in linear if module.get_submodule(name) is output or _within(name, heads)}


def _heads(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_modules() if name.rpartition(".")[2] in HEADS}


def _widths(module: nn.Module) -> tuple[int, int] | None:
    """Return the widths of a linear layer's input and output, None for any other module."""
    if type(module) is nn.Linear:  # a subclass may compute something else
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # GPT-2's, of transformers
        weight: Any = module.weight
        inputs, outputs = weight.shape  # the transpose of nn.Linear's
        return int(inputs), int(outputs)
    return None


def _output_embeddings(module: nn.Module) -> nn.Module | None:
    for one in module.modules():
        found: Any = getattr(one, "get_output_embeddings", None)
        if callable(found):
            try:
                return cast(nn.Module | None, found())
            except (AttributeError, NotImplementedError):  # of a model without any
                return None
    return None


def _within(name: str, modules: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in modules)
