"""Early updates: each right after its gradient, before it is known whether gradients are to be clipped.

    first pass    … B2 ─dw2─▶ norm, w2/update … B1 ─dw1─▶ norm, w1/update ─▶ the norm of all
                                                                               │ within: done
    second pass   the same operations, from the same state  ◀── put back ──────┘ above
                  each update multiplies its gradient by the coefficient, which is known now

Both passes run one program by one schedule, and differ in two settings. The state before is in the journal
(devices/storage/journal.py), in host memory. Within the norm the coefficient is exactly 1, by which a product
has its factor's bits, so the first pass leaves the multiplication out. Of a scaled loss the second pass
leaves out the updates if a gradient is infinite; buffers and random numbers go on then, as eager PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..devices.device.choice import device_of
from ..devices.device.device import Device, StreamDevice
from ..devices.measuring.link_rates import alone_to_host
from ..devices.measuring.measure import Measurement
from ..devices.sharded.ranks import OnAllRanksError
from ..program.program import Call, Operation, Program, Ref, Setting
from .rules import AT_ONCE, RULES, in_bucket, in_rows, members, runs

COEFFICIENT = Setting(-1, 1.0)
"""The last of an iteration's settings: the Coefficient that is known, or 1."""

INFINITE = Setting(-2, 0.0)
"""The last but one: whether a gradient is known to be infinite."""


@dataclass(frozen=True)
class Coefficient:
    """A coefficient as a tensor on the device, and in host memory for updates that run there.

    Not as a number: kernels round their products with one otherwise if gradients have several dtypes.
    """

    on_device: Tensor
    on_host: Tensor


class Known(NamedTuple):
    """What a pass knows of all gradients.

    coefficient: 1 in a first pass. infinite: whether one of them is.
    """

    coefficient: Coefficient | float = 1.0
    infinite: bool = False

    @property
    def settings(self) -> tuple[Any, ...]:
        """The settings that early updates have in addition to others."""
        return float(self.infinite), self.coefficient


FIRST_PASS = Known()


class TooEarlyError(OnAllRanksError):
    """A first pass has updated weights by gradients that are to be clipped, or not used at all.

    Ranks that average their gradients have one norm, and raise it together.

    known: what the second pass knows.
    """

    def __init__(self, known: Known) -> None:
        super().__init__("the iteration runs a second time, with the coefficient of its norm")
        self.known = known


def early(
    weight: Tensor,
    gradient: Tensor,
    *rest: Any,
    update: str,
    clip: Coefficient | float = 1.0,
    infinite: float = 0.0,
    **hyperparameters: Any,
) -> None:
    """Update a weight by what is known of all gradients. update: the name of the update function."""
    if infinite:
        return
    clipping = {"clip": clip.on_device} if isinstance(clip, Coefficient) else {}
    RULES[update](weight, gradient, *rest, **clipping, **hyperparameters)


def settings_on_host(settings: Sequence[Any]) -> list[Any]:
    """Return an iteration's settings for operations that run on the host."""
    return [
        replace(each, on_device=each.on_host) if isinstance(each, Coefficient) else each for each in settings
    ]


def updates_early(program: Program) -> bool:
    """Tell whether the program has early updates."""
    return any(map(_is_early, program.operations))


def coefficient_bytes(program: Program, device: Device) -> int:
    """Return the bytes on the device in which early updates compute their coefficient between two passes; 0
    without such updates.
    """
    if program.norm is None or not updates_early(program):
        return 0
    # The sum, its reciprocal and the product are there at once, while transfers of the first pass go on.
    return 3 * device.rounded(program.values[program.norm].dtype.itemsize)


def _is_early(operation: Operation) -> bool:
    return operation.call.target is early


# ── costs ────────────────────────────────────────────────────────────────────────────────────────────


def with_undo(
    measured: Sequence[Measurement],
    program: Program,
    *,
    moves: bool,
    rates: tuple[float, float] | None = None,
) -> list[Measurement]:
    """Add to each operation's time what copies to the journal cost it, and to an update's memory the clipped
    gradient of a second pass.

    moves: schedules may move what is copied, which is then copied when it changes; otherwise a device with
        streams copies from the iteration's beginning on, and an update waits if its copy is not there.
    rates: bytes per second, as `journal_rates` measures them here.
    """
    from_device, from_host = rates or journal_rates(program.device)
    ahead = not moves and isinstance(device_of(program.device), StreamDevice)
    found, elapsed, copied = list[Measurement](), 0.0, 0.0
    for one, operation in zip(measured, program.operations, strict=True):
        kept, more = undone_bytes(program, operation)
        copied += kept / from_device
        # A schedule that recomputes is later here, so it waits no longer.
        waits = max(0.0, copied - elapsed) if ahead and kept else kept / from_device
        host = one.host_seconds
        found.append(
            one._replace(
                seconds=one.seconds + waits,
                peak_bytes=one.peak_bytes + more,
                host_seconds=None if host is None else host + kept / from_host,
                host_bytes=one.host_bytes + more,
            )
        )
        elapsed += found[-1].seconds
    return found


def undone_bytes(program: Program, operation: Operation) -> tuple[int, int]:
    """Return the bytes that the journal keeps of an operation, and those by which an update's memory grows in
    a second pass.
    """
    kept = sum(program.storages[x].bytes for x in program.residents_changed(operation))
    return kept, _clipped_bytes(program, operation) if _is_early(operation) else 0


def _clipped_bytes(program: Program, operation: Operation) -> int:
    """Return the most that the clipped gradients add to an update's memory."""
    call = operation.call
    if "clip" not in call.keywords:
        return 0
    if runs(call, in_bucket):
        each = [_product_bytes(program, one) for one in members(call)]
        return sum(each) if call.keywords["each"] in AT_ONCE else max(each)
    if runs(call, in_rows):
        return _product_bytes(program, call, call.keywords["stop"] - call.keywords["start"])
    gradient = program.values[_gradient(call)]
    # No less than the gradient's storage: a product is laid out as its factor.
    return max(_product_bytes(program, call), program.storages[gradient.storage].bytes)


def _product_bytes(program: Program, call: Call, rows: int | None = None) -> int:
    """Return the bytes of an update's gradient times a coefficient. rows: of the gradient, None for all."""
    form = program.values[_gradient(call)]
    each = torch.float32.itemsize if call.keywords.get("in_float32") else form.dtype.itemsize
    elements = form.end // form.dtype.itemsize - form.offset
    if rows is not None:
        elements = elements // form.shape[0] * rows
    return device_of(program.device).rounded(elements * each)


def _gradient(call: Call) -> int:
    gradient = call.arguments[1]
    assert isinstance(gradient, Ref)
    return gradient.value


@cache
def journal_rates(device: torch.device) -> tuple[float, float]:
    """Return the bytes per second that the journal copies: from the device, and from host memory."""
    return alone_to_host(device_of(device)), alone_to_host(device_of(torch.device("cpu")))
