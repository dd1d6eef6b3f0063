"""Autograd: backward passes, saved tensors, checkpoints, functions, functional tensors."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch.autograd.graph import _engine_run_backward


def in_backward() -> bool:
    """Tell whether autograd runs this code in a backward pass."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def functionalising() -> Generator[None]:
    """Turn changes in place of functional tensors into new tensors.

    `torch.func.functionalize` does so too, but with functorch's own decompositions of some losses and
    dropouts, which round differently.
    """
    # Views stay views: as copies they would be storages of the program.
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def to_functional(tensor: Tensor) -> Tensor:
    return torch._to_functional_tensor(tensor)


def from_functional(tensor: Tensor) -> Tensor:
    """Return the tensor that a functional one wraps, with all changes applied."""
    if not torch._is_functional_tensor(tensor):
        return tensor
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def change_functional(tensor: Tensor, new: Tensor) -> Tensor:
    """Make the functional tensor `tensor` have the values of `new` from now on, as a change in place does."""
    torch._functionalize_replace(tensor, from_functional(new))
    torch._functionalize_commit_update(tensor)
    torch._functionalize_sync(tensor)
    return tensor


@contextmanager
def checkpoints_replaced(
    reentrant: Callable[..., Any], surroundings: Callable[..., Generator[None]]
) -> Generator[None]:
    """Replace the inner functions of `torch.utils.checkpoint`, since libraries bind its outer ones early.

    reentrant: what a reentrant checkpoint calls.
    surroundings: a generator that surrounds the function that any other checkpoint runs.
    """
    with (
        patch.object(torch.utils.checkpoint.CheckpointFunction, "apply", staticmethod(reentrant)),
        patch.object(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", surroundings),
    ):
        yield


def function_of(node: Any) -> Any:
    """Return the `torch.autograd.Function` of an autograd node; None for a node of another kind."""
    kind: Any = type(node)
    return getattr(kind, "_forward_cls", None)


def function_arguments_replaced(change: Callable[[Any], Any]) -> Any:
    """Return a context in which every `torch.autograd.Function` is applied to `change(arguments)`."""
    apply: Any = vars(torch.autograd.Function)["apply"]  # a class method, of C from torch 2.15 on

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = change((args, kwargs))
        return apply.__get__(None, cls)(*args, **kwargs)

    return patch.object(torch.autograd.Function, "apply", classmethod(applied))


def functions_applied(call: Callable[[Any, Callable[..., Any], Any, Any], Any]) -> Any:
    """Return a context in which every `torch.autograd.Function` is applied by `call(class, apply, arguments,
    keywords)`.
    """
    apply: Any = vars(torch.autograd.Function)["apply"].__func__

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return call(cls, partial(apply, cls), args, kwargs)

    return patch.object(torch.autograd.Function, "apply", classmethod(applied))


def below_autograd() -> Any:
    """Return a context in which calls go straight to the kernels: nothing is recorded for a backward."""
    return torch._C._AutoDispatchBelowAutograd()


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Return `torch.autograd.grad` of the outputs, None for inputs that none of them follows from.

    cotangents: gradients of the outputs.

    Function modes stay on in the backward of a `torch.autograd.Function`: that calls itself without them.
    """
    # retain_graph and create_graph are off; the last of the flags is allow_unused.
    return _engine_run_backward(
        tuple(outputs), tuple(cotangents), False, False, tuple(inputs), True, accumulate_grad=False
    )


def graph_is_kept() -> bool:
    """Tell, within a backward, whether it may be called another time (`retain_graph`)."""
    return _get_current_graph_task_keep_graph()
