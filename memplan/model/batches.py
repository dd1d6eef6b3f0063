"""A model's iteration with another batch than its example's.

A `build` with a parameter `batch` makes it itself. For any other, the example inputs are repeated, or cut: a
batch is the first dimension of their first tensor, and every tensor whose first dimension is as long has one
row for each sample. Targets are repeated in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..graphs.errors import InputError
from .iteration import Iteration, tensors_in, with_tensors

PARAMETER = "batch"


def takes_batch(build: Callable[..., Any]) -> bool:
    """Tell whether a function that builds a model can be given the batch by name."""
    parameter = inspect.signature(build).parameters.get(PARAMETER)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return parameter is not None and parameter.kind in named


def with_batch(iteration: Iteration, batch: int) -> Iteration:
    """Return the iteration with as many rows in its inputs. Raises InputError if they have no rows."""
    tensors = tensors_in(iteration.inputs)
    rows = next((tensor.shape[0] for tensor in tensors.values() if tensor.dim()), 0)
    if not rows:
        raise InputError(
            f"its example inputs have no batch to change: give the function a parameter {PARAMETER!r}"
        )
    changed = {
        name: _rows(tensor, batch) if tensor.dim() and tensor.shape[0] == rows else tensor
        for name, tensor in tensors.items()
    }
    return iteration._replace(inputs=with_tensors(iteration.inputs, changed))


def _rows(tensor: Tensor, batch: int) -> Tensor:
    """Repeat the tensor's rows up to `batch` of them, in separate memory."""
    times = -(-batch // tensor.shape[0])
    with torch.no_grad():
        rows = tensor.repeat(times, *[1] * (tensor.dim() - 1))[:batch].clone()
    return rows.requires_grad_(tensor.requires_grad)
