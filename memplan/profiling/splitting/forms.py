"""A program in which no call reads a tensor for its form alone.

Backward begins with `ones_like(loss)`. It needs no number of the loss, and as `ones([])` it does not wait for
it: so forward and backward around a loss can be one region, whatever is done with the loss in between.
Dropout draws a mask of the form of its input: as one of a size it is drawn as a whole before the region that
reads it in pieces, with the numbers that eager PyTorch draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...devices.calls.fused import dropout_mask, dropout_mask_of
from ...program.program import Call, Operation, Program, Value, values_read
from .operators import name_of

aten: Any = torch.ops.aten

_MADE: dict[Any, Callable[[Call], tuple[Any, tuple[Any, ...]]]] = {
    "ones_like": lambda call: (aten.ones.default, ()),
    "new_ones": lambda call: (aten.ones.default, ()),
    "zeros_like": lambda call: (aten.zeros.default, ()),
    "new_zeros": lambda call: (aten.zeros.default, ()),
    "full_like": lambda call: (aten.full.default, call.arguments[1:2]),
    "new_full": lambda call: (aten.full.default, call.arguments[2:3]),
    dropout_mask: lambda call: (dropout_mask_of, call.arguments[1:]),
}
"""Per operator the one that makes the same of a size, and its arguments after that."""


def without_forms(program: Program) -> Program:
    """Return the program with calls of sizes instead of calls that read a form. It makes the same bits."""
    return replace(program, operations=[_of_size(program, one) for one in program.operations])


def _of_size(program: Program, operation: Operation) -> Operation:
    call = operation.call
    made = _MADE.get(name_of(call) or call.target)
    (value,) = call.outputs if len(call.outputs) == 1 else (None,)
    if made is None or value is None or len(values_read(call)) != 1:
        return operation
    form = program.values[value]
    # `ones(size)` is contiguous; `ones_like` keeps the layout of its argument.
    if form.strides != _contiguous(form):
        return operation
    target, more = made(call)
    keywords = {"dtype": form.dtype, "device": form.device}
    new = Call(target, (list(form.shape), *more), keywords, call.outputs, call.several)
    return operation._replace(call=new, reads=())


def _contiguous(form: Value) -> tuple[int, ...]:
    return torch.empty(form.shape, device="meta").stride()
