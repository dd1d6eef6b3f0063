"""Gradients that a trace would lose in silence, and their refusal.

The gradients of a traced iteration are those of its one backward, by `torch.autograd.grad`. A backward that
the model's own code runs adds to `.grad` of parameters as a side effect, which no plan has; a leaf that is
not a fake tensor of the trace would get the gradient instead of the parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..torch_support.hints import OWN_BACKWARD
from ..torch_support.torch_autograd import function_of
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_tensors import GRADIENT_OF_TENSOR
from ..torch_support.unsupported import TraceError, at_line, users_line


@contextmanager
def other_gradients_refused(parameters: Mapping[str, Tensor]) -> Generator[None]:
    """Raise TraceError if anything accumulates into `.grad` of these, or code reads or sets it."""

    def refuse(name: str, parameter: Tensor) -> None:
        # The hook runs after the sum: what it has added would stay in `.grad`.
        parameter.grad = None
        raise TraceError(
            f"{users_line()}runs a backward of its own, which adds to the gradient of {name}; {OWN_BACKWARD}"
        )

    hooks: list[Any] = [
        parameter.register_post_accumulate_grad_hook(partial(refuse, name))
        for name, parameter in parameters.items()
        if parameter.requires_grad and parameter.is_leaf
    ]
    try:
        with _GradRefused(parameters):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _GradRefused(TorchFunctionMode):
    """Mode that intercepts every function of torch, the attribute `.grad` among them."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Reads outside of the user's code are PyTorch's own.
        if func in GRADIENT_OF_TENSOR and (name := self._names.get(id(args[0]))) and (place := users_line()):
            raise TraceError(
                f"{place}reads or sets {name}.grad inside the iteration, whose gradients a plan has at "
                "its end "
                "alone: return the gradient from the backward of a torch.autograd.Function that takes the "
                "parameter as an argument, or compute it by torch.autograd.grad"
            )
        return func(*args, **(kwargs or {}))


def check_leaves(leaves: Iterable[tuple[Tensor, Any]], names: Mapping[int, str]) -> None:
    """Raise TraceError if a leaf is a real parameter: its fake gets no gradient.

    leaves: each with the autograd node that reads it.
    names: of the module's real parameters, by their identity.
    """
    for leaf, node in leaves:
        if (name := names.get(id(leaf))) is not None and not isinstance(leaf, FakeTensor):
            raise TraceError(
                f"{_place(node)}uses the parameter {name} past its module, in native code: read it there as "
                "an attribute of its module"
            )


def _place(node: Any) -> str:
    """Return `model.py:12: `, the line of the user's `torch.autograd.Function` that made the node, if one
    did.
    """
    function = function_of(node)
    code = getattr(inspect.unwrap(function.forward), "__code__", None) if function else None
    return at_line(code.co_filename, code.co_firstlineno) if code else ""
