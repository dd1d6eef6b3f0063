"""Weights and buffers to which forward gives other memory: `weight.data = …`.

A trace knows them by their memory. What such a line computes is written into the memory that is there, so
that the values go on from iteration to iteration as they do in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..guards.captured import users_line
from ..torch_support.torch_tensors import memory_of
from ..torch_support.unsupported import TraceError

_T: Any = Tensor
_SETS_DATA = _T.data.__set__


class Replaced(TorchFunctionMode):
    """Mode around forward that handles new memory for parameters and buffers.

    named: the parameters and buffers of the trace, by name.
    """

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._named = named
        self._memories = {name: memory_of(tensor) for name, tensor in named.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SETS_DATA and id(args[0]) in self._names:
            return self._write(*args)
        return func(*args, **(kwargs or {}))

    def check(self) -> None:
        """Raise TraceError if a tensor lies in other memory after all (`set_`, a setter in C++)."""
        for name, tensor in self._named.items():
            if memory_of(tensor) != self._memories[name]:
                raise TraceError(
                    f"forward gives {name} other memory: change it in place, with {name}.data.copy_(…)"
                )

    def _write(self, tensor: Tensor, new: Tensor) -> None:
        if _layout(tensor) == _layout(new):
            return
        if tensor.shape != new.shape or tensor.dtype != new.dtype or tensor.device != new.device:
            raise TraceError(
                f"{users_line()}forward gives {self._names[id(tensor)]} the form {new.dtype} "
                f"{list(new.shape)}, before it has {tensor.dtype} {list(tensor.shape)}: do that once, before "
                "it is planned"
            )
        with torch.no_grad():
            tensor.data.copy_(new)


def _layout(tensor: Tensor) -> tuple[object, ...]:
    return memory_of(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
