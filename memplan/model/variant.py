"""A model's iteration as it would be with other options: adapters, autocast, another attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..graphs.errors import InputError
from ..torch_support.torch_modules import attention_of
from .iteration import Iteration
from .lora import LowRank, with_adapters

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Variant:
    """Options that change what a model computes.

    lora: adapters; all else is frozen. quantize: a kind of quantised.py, for the frozen linear weights.
    autocast: a name of AUTOCAST, for forward and loss.
    attention: `attn_implementation` of a transformers model, eager or sdpa.
    """

    lora: LowRank | None = None
    autocast: str | None = None
    attention: str | None = None
    quantize: str | None = None

    def of(self, iteration: Iteration) -> Iteration:
        """Return the iteration with these options; its module itself changes. Raises InputError."""
        if self.attention is not None:
            _set_attention(iteration.module, self.attention)
        if self.lora is not None:
            with_adapters(iteration.module, self.lora, self.quantize)
        if self.autocast is None:
            return iteration
        return iteration._replace(autocast=AUTOCAST[self.autocast])


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
