"""Operators of other packages that are made of others on a device that has no kernel for them.

A trace takes them apart, so that a plan sees what they make in between: bitsandbytes' product with a 4-bit
weight dequantises that weight first, which takes four to eight times its bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from ...torch_support.torch_fakes import DispatchMode, device_of_fake
from ...torch_support.torch_operators import asks_for_device, kernel_made_of_others
from ...torch_support.torch_trees import tensors_among

_PACKAGES: Mapping[str, tuple[str, ...]] = {"bitsandbytes": ("gemm_4bit",)}
"""By package, its operators that may be made of others."""


class Composite(DispatchMode):
    """Mode of the trace that calls what an operator is made of on the tensors' device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if asks_for_device(func, args):
            return device_of_fake(args[0])
        kwargs = kwargs or {}
        if func.namespace in _PACKAGES:
            func = _taken_apart(func, tensors_among((args, kwargs))[0].device.type) or func
        return func(*args, **kwargs)


def operators_taken_apart() -> AbstractContextManager[object]:
    """Return the mode of a trace in which such operators are taken apart, if a package with some is there."""
    return Composite() if any(package in sys.modules for package in _PACKAGES) else nullcontext()


@cache
def _taken_apart(operator: Any, device: str) -> Callable[..., Any] | None:
    if operator.name().partition("::")[2] not in _PACKAGES[operator.namespace]:
        return None
    return kernel_made_of_others(operator, device)
