"""Weights and buffers to which forward gives other memory: `weight.data = …`.

A trace knows them by their memory. What such a line computes is written into the memory that is there, so
that the values go on from iteration to iteration as they do in eager PyTorch.

A frozen tensor that forward converts to another dtype stays converted: eager's first iteration does that, no
later one. It is converted before the trace, which then starts as the second iteration does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..guards.captured import users_line
from ..torch_support.hints import PACKED
from ..torch_support.torch_tensors import memory_of
from ..torch_support.unsupported import TraceError

_T: Any = Tensor
_SETS_DATA = _T.data.__set__
_OF_BITSANDBYTES = "of bitsandbytes: "
_CONVERT = {_T.to, _T.type, _T.half, _T.bfloat16, _T.float, _T.double}


class ConvertedError(TraceError):
    """Error of a frozen parameter or buffer that forward converts to another dtype, once and for all."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        super().__init__(f"forward converts {name} to {dtype}")
        self.name, self.dtype = name, dtype

    def __reduce__(self) -> tuple[type[ConvertedError], tuple[str, torch.dtype]]:
        return type(self), (self.name, self.dtype)


class Replaced(TorchFunctionMode):
    """Mode around forward that handles new memory for parameters and buffers.

    named: the parameters and buffers of the trace, by name.
    pairs: the module's own tensors, each with that of the trace.
    """

    def __init__(self, named: Mapping[str, Tensor], pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._traced = {id(real): fake for real, fake in pairs}
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._named = named
        self._memories = {name: memory_of(tensor) for name, tensor in named.items()}
        self._converted: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # `__set__` is a bound method, made anew at each access: equal, not identical.
        if func == _SETS_DATA and id(args[0]) in self._names:
            new: Tensor = args[1]
            return self._write(args[0], self._traced.get(id(new), new))
        made = func(*args, **(kwargs or {}))
        if func in _CONVERT and made.dtype != args[0].dtype:
            self._converted.append((made, args[0]))
        return made

    def check(self) -> None:
        """Raise TraceError if a tensor lies in other memory after all (`set_`, a setter in C++)."""
        for name, tensor in self._named.items():
            if memory_of(tensor) != self._memories[name]:
                raise TraceError(
                    f"forward gives {name} other memory: change it in place, with {name}.data.copy_(…)"
                )

    def _write(self, tensor: Tensor, new: Tensor) -> None:
        # `x.data = x.data`: nothing to write.
        if _layout(tensor) == _layout(new):
            return
        for made, source in self._converted:
            if made is new and _layout(source) == _layout(tensor) and not tensor.requires_grad:
                raise ConvertedError(self._names[id(tensor)], new.dtype)
        if tensor.shape != new.shape and (place := users_line()).endswith(_OF_BITSANDBYTES):
            raise TraceError(f"{place}{PACKED}")
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


def convert(module: nn.Module, error: ConvertedError) -> None:
    """Convert a tensor of the module as its first forward does."""
    owner, _dot, own = error.name.rpartition(".")
    tensor = getattr(module.get_submodule(owner), own)
    tensor.data = tensor.data.to(error.dtype)
