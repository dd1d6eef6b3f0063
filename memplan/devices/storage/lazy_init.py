"""Uninitialized tensors, whose values are nowhere yet: a file's weights, the zeros of an optimizer's new
states.

They are treated as offloaded (offloaded.py) and take no memory. At the first use their bytes are filled in:
on the device by a read, or in the memory in which a plan starts with them, on the host or the disk. So a
model that the device has no room for is made one tensor at a time.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...program.program import Value
from ...torch_support.interrupts import deferred_signals
from ...torch_support.torch_tensors import empty_for_nobody
from .copies import value
from .offloaded import Fill, Hold, hold_anew, hold_of, offload_value, restore


def unmade(form: Value, fill: Fill) -> Tensor:
    """Create an uninitialized tensor of this form, on the form's device."""
    made = empty_for_nobody(form.dtype, form.device)
    make_later(made, form, fill)
    return made


def make_later(tensor: Tensor, form: Value, fill: Fill) -> None:
    """Make the tensor, of the form's dtype and device, uninitialized."""
    offload_value(tensor, form, partial(_bring_back, tensor), partial(_copies, tensor))
    hold_anew(tensor, _held(tensor)._replace(fill=fill))


def is_unmade(tensor: Tensor) -> bool:
    hold = hold_of(tensor)
    return hold is not None and hold.fill is not None


def refill(tensor: Tensor, fill: Fill) -> None:
    """Give an uninitialized tensor other values."""
    hold_anew(tensor, _held(tensor)._replace(fill=fill))


def zeros(bytes_: Tensor) -> None:
    bytes_.zero_()


def filled_with(values: Tensor, form: Value, bytes_: Tensor) -> None:
    """Fill bytes with these values, which may be of another dtype."""
    value(bytes_, form).copy_(values)


def _bring_back(tensor: Tensor) -> None:
    hold = _held(tensor)
    made = value(_made(hold, hold.form.device), hold.form)
    # Values, class and hold change together.
    with deferred_signals():
        restore(tensor, made)


def _copies(tensor: Tensor) -> list[Tensor]:
    """Return the values to be read: what is written there is lost."""
    return [_made(_held(tensor), torch.device("cpu"))]


def _made(hold: Hold, device: torch.device) -> Tensor:
    assert hold.fill is not None
    bytes_ = torch.empty(hold.form.end, dtype=torch.uint8, device=device)
    hold.fill(bytes_)
    return bytes_


def _held(tensor: Tensor) -> Hold:
    hold = hold_of(tensor)
    assert hold is not None
    return hold
