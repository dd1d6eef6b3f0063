"""Fake tensors and the modes that intercept operators; whether PyTorch compiles."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    run_fallback_kernel,
)
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
]

Mode = TypeVar("Mode", bound=FakeTensorMode)
"""A mode of fake tensors."""


class DispatchMode(TorchDispatchMode):
    """Mode of the trace that intercepts every operator, which torch.compile need not look at."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each call goes through two functions more, and the first one imports Dynamo


def device_of_fake(tensor: FakeTensor) -> torch.device:
    """Return what a fake mode says of a tensor's device."""
    return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


_META = torch.device("meta")


@cache
def fake_kind(kind: type[Tensor]) -> type[Tensor]:
    """Return the class of a fake tensor that is an instance of this class too, by its name.

    Its `to` is PyTorch's: a class's own may make new tensors of the class, which no fake tensor can become.
    """
    bases: Any = (kind, FakeTensor)
    return type(kind.__name__, bases, {"__module__": kind.__module__, "to": Tensor.to})


@cache
def names_of_fakes() -> frozenset[str]:
    """Return the attributes that PyTorch itself gives every fake tensor."""
    return frozenset(vars(FakeTensorMode().from_tensor(torch.empty(0, device="cpu"))))


FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"
"""Logger to which the tracer reports an operation that it cannot trace."""

no_dispatch_modes = _disable_current_modes

no_torch_function = torch._C.DisableTorchFunctionSubclass
"""Contexts: dispatch modes, and `__torch_function__` of subclasses, are left out."""

no_function_modes = torch._C.DisableTorchFunction
"""Context without `__torch_function__`, both of subclasses and of modes."""


def dynamo_is_imported() -> bool:
    """Tell whether the modules of torch.compile are there, which the first fake mode imports."""
    return "torch._dynamo" in sys.modules


def operator_without_fake_kernel(error: BaseException) -> Any:
    """Return the operator at which a trace failed for lack of a kernel for fake tensors; None for another
    reason.

    PyTorch runs some of those on zeros instead, which the operator may refuse by an error of its own.
    """
    if isinstance(error, UnsupportedOperatorException):
        return error.func
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is run_fallback_kernel.__code__:
            return trace.tb_frame.f_locals["func"]
        trace = trace.tb_next
    return None


@contextmanager
def fake_results_forgotten() -> Generator[None]:
    """Forget which fake tensors operators returned within the block.

    torch keeps that forever for each operator and shapes, which nobody needs once there is a plan for them.
    """
    kept = FakeTensorMode.cache
    before = len(kept)  # in the order in which they came
    try:
        yield
    finally:
        for key in list(islice(kept, before, None)):
            kept.pop(key, None)


@contextmanager
def uncompiled() -> Generator[None]:
    """Run what `torch.compile` has compiled as it was before, in a trace too."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, then
        yield
        return
    config: Any = torch._dynamo.config
    before = config.error_on_nested_fx_trace
    # Not by `config.patch`: since torch 2.13 each patch leaves a variable in the thread's context forever.
    config.error_on_nested_fx_trace = False
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        config.error_on_nested_fx_trace = before


def addresses_refused(mode: FakeTensorMode) -> Any:
    """Return a context that raises RuntimeError if code asks for the address of a fake tensor, which has
    none.

    Native code that gets zero instead ends the process.
    """
    return patch.object(mode, "_allow_unsafe_data_ptr_access", False)


def launches_nothing(mode: type[Mode]) -> type[Mode]:
    """Decorate a mode of fake tensors: a launch of a Triton kernel in it does nothing, as in PyTorch's own.

    The kernel is one of `torch.library.triton_op`, whose fake kernel is the operator's own code.
    """

    def nothing(mode: FakeTensorMode, **_launch: Any) -> None:
        del mode

    triton_kernel_wrapper_mutation.py_impl(mode)(nothing)
    return mode


def fakes_retyped(retype: Callable[[Tensor, type[Tensor]], Tensor]) -> Any:
    """Return a context in which `as_subclass` of a fake tensor is `retype`.

    PyTorch's own returns a tensor that is not fake any more, without data.
    """
    return patch.object(FakeTensor, "as_subclass", retype, create=True)


def dispatches(tensor: Tensor) -> bool:
    """Tell whether the tensor's class computes in its own way (`__torch_dispatch__`)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def modes_around() -> list[Any]:
    """Return the function modes and dispatch modes that are active, without PyTorch's own and memplan's."""
    if not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()):
        return []
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    own = ("torch", __name__.partition(".")[0])
    return [mode for mode in modes if type(mode).__module__.partition(".")[0] not in own]


def says_compiling() -> bool:
    """Return what `torch.compiler.is_compiling()` answers outside of a compilation."""
    return torch.compiler._is_compiling_flag


def say_compiling(flag: bool) -> None:
    torch.compiler._is_compiling_flag = flag
