"""The part of a checkpoint's tensors that a process holds: each whole, or its shares of what ranks hold.

A file has whole tensors in either case, so what some ranks save any number of ranks loads, or one process
without any. `Holding` is the process alone; ranks have sharded_holding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...devices.storage.host_access import at_home_value, replace_at_home
from .random_numbers import random_numbers

Result = TypeVar("Result")


class Holding:
    """A process that holds each tensor whole, and has nobody to agree with.

    rank: this one's; rank 0 writes. size: how many hold the tensors together.
    """

    rank = 0
    size = 1

    def together(self, make: Callable[[], Result]) -> Result:
        """Return what `make` returns; if it fails on one rank it fails on all."""
        return make()

    def check_equal(self, what: str, mine: object) -> None:
        """Raise MismatchError if one rank has another value than rank 0."""

    def check_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise MismatchError if the ranks do not save the same tensors. tensors: by name."""

    def check_extra(self, extra: Mapping[str, Any]) -> None:
        """Raise InputError if rank 0's values alone would be saved of tensors that all ranks hold."""

    def random_numbers(self) -> list[dict[str, Any]]:
        """Return the states of each rank's random number generators."""
        return [random_numbers()]

    # ── saving ──────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def reading(self, tensors: Sequence[Tensor]) -> Generator[None]:
        """Surround the calls of `read` on rank 0. tensors: those it will be called with, in this order."""
        yield

    def read(self, tensor: Tensor) -> Tensor:
        """Return a tensor's values, whole, on rank 0; they may be read until the next call."""
        return at_home_value(tensor)

    def give(self, tensors: Sequence[Tensor]) -> None:
        """Give the shares for which rank 0 calls `read`, on the other ranks."""

    # ── loading ─────────────────────────────────────────────────────────────────────────────────────

    def replace(self, tensor: Tensor, values: Tensor) -> None:
        """Replace what this rank holds of a tensor. values: whole, in the same form."""
        replace_at_home(tensor, values)

    def new_state(self, parameter: Tensor, values: Tensor, *, on_cpu: bool) -> Tensor:
        """Return a new optimizer state on its parameter's device, or on the CPU.

        values: whole; the state has the parameter's strides if it has its shape.
        """
        device = torch.device("cpu") if on_cpu else parameter.device
        if values.shape == parameter.shape:
            made = torch.empty_strided(values.shape, parameter.stride(), dtype=values.dtype, device=device)
        else:
            made = torch.empty(values.shape, dtype=values.dtype, device=device)
        return made.copy_(values)
