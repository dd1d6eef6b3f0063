"""A model's iteration as it would be with other options: adapters, autocast, another attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..graphs.errors import InputError
from ..torch_support.torch_modules import attention_of, parameters_of
from .iteration import Iteration, Labelled, tensors_in, with_tensors
from .lora import LowRank, with_adapters

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Variant:
    """Options that change what a model computes.

    lora: adapters; all else is frozen. quantize: a kind of quantised.py, for the frozen linear weights.
    autocast: a name of AUTOCAST, for forward and loss.
    attention: `attn_implementation` of a transformers model, eager or sdpa.
    gathered: whether float32 weights are computed with in bfloat16, and inputs cast to it, as FSDP2's
        MixedPrecisionPolicy(param_dtype=torch.bfloat16) does. Buffers stay as they are.
    """

    lora: LowRank | None = None
    autocast: str | None = None
    attention: str | None = None
    quantize: str | None = None
    gathered: bool = False

    def of(self, iteration: Iteration) -> Iteration:
        """Return the iteration with these options; its module itself changes. Raises InputError."""
        if self.attention is not None:
            _set_attention(iteration.module, self.attention)
        if self.lora is not None:
            with_adapters(iteration.module, self.lora, self.quantize)
        if self.gathered:
            iteration = _gathered(iteration)
        if self.autocast is None:
            return iteration
        return iteration._replace(autocast=AUTOCAST[self.autocast])


def _gathered(iteration: Iteration) -> Iteration:
    weights = {id(one): one for one in iteration.module.parameters() if one.dtype == torch.float32}
    if not weights:
        raise InputError(
            "--param-dtype: no weight is float32, so none is gathered in another dtype: make the model in "
            "float32, in its code or by --dtype float32"
        )
    cast = {x: nn.Parameter(one.detach().to(torch.bfloat16), one.requires_grad) for x, one in weights.items()}
    for part in iteration.module.modules():
        for name, one in parameters_of(part).items():
            if id(one) in cast:
                parameters_of(part)[name] = cast[id(one)]
    inputs = iteration.inputs
    taken = inputs.inputs if isinstance(inputs, Labelled) else inputs
    tensors = tensors_in(taken)
    changed = {name: x.to(torch.bfloat16) if x.dtype == torch.float32 else x for name, x in tensors.items()}
    made = with_tensors(taken, changed)
    return iteration._replace(inputs=Labelled(made, inputs.targets) if isinstance(inputs, Labelled) else made)


def _set_attention(module: torch.nn.Module, attention: str) -> None:
    set_one = next((found for one in module.modules() if (found := _setter(one)) is not None), None)
    if set_one is None:
        raise InputError("--attention is for models of transformers, of 4.54 or later")
    try:
        set_one(attention)
    except (ValueError, ImportError, NotImplementedError) as error:
        line = " ".join(str(error).split())[:200]
        raise InputError(f"--attention {attention}: the model does not have it: {line}") from None
    if attention_of(set_one.__self__) != attention:
        raise InputError(f"--attention {attention}: the model has its own attention alone")


def _setter(module: torch.nn.Module) -> Any:
    return getattr(module, "set_attn_implementation", None)
