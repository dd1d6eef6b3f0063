"""Models built without memory for them: shapes, dtypes and strides, but no data.

A user's `build()` runs under PyTorch's fake tensors. One that asks for a tensor's value meanwhile (an
`.item()`, a branch on data) can't, nor one that makes weights of a class of their own (bitsandbytes'). It is
run for real instead, and then needs memory for the parameters, though for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...torch_support.torch_modules import applied, applied_by, buffers_of, parameters_of
from ...torch_support.unsupported import is_value_dependent
from ...tracing.layouts import TrueFakes

T = TypeVar("T")

_OWN_CLASS = "Creating a new Tensor subclass"
"""PyTorch's words where a class makes its instance of a fake tensor."""


def fake_build(build: Callable[[], T]) -> T:
    """Call `build` and return its result, with fake tensors if that is possible."""
    replacing = applied_by(_Replacing().apply)
    try:
        with TrueFakes({}), replacing:
            return build()
    except Exception as error:
        # PyTorch may wrap the error that a fake tensor raised.
        if not (is_value_dependent(error.__cause__ or error) or _OWN_CLASS in str(error)):
            raise
    return build()


class _Replacing:
    """`Module.to`, `half`, `cuda` by new parameters: PyTorch's own implementation, a swap, fails on fake
    ones.
    """

    def __init__(self) -> None:
        self._new: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    @property
    def apply(self) -> Callable[..., nn.Module]:
        def apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
            for child in module.children() if recurse else ():
                applied(child, change)
            for name, parameter in parameters_of(module).items():
                if parameter is not None:
                    parameters_of(module)[name] = self._changed(parameter, change)
            for name, buffer in buffers_of(module).items():
                if buffer is not None:
                    buffers_of(module)[name] = change(buffer)
            return module

        return apply

    def _changed(self, old: nn.Parameter, change: Callable[[Tensor], Tensor]) -> nn.Parameter:
        """Return one new parameter for each old one, however many modules share it."""
        # The old parameter is kept too: an id is unique only among living objects.
        if id(old) not in self._new:
            with torch.no_grad():
                self._new[id(old)] = (old, nn.Parameter(change(old), old.requires_grad))
        return self._new[id(old)][1]
