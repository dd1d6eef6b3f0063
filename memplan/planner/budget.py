"""Budgets as users give them: bytes with a unit, or a percentage of the baseline's peak.

'60%' is of the peak itself; '60%a' is all that stays throughout an iteration (weights, buffers, optimizer
states, the batch), and 60 % of what the peak has above that: activations, gradients, workspace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.units import BARE, FEW_BYTES, format_bytes, parse_bytes

_PERCENT = re.compile(r"\s*(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*%(a?)\s*", re.ASCII)


@dataclass(frozen=True)
class Budget:
    """A requested budget, in bytes or as a share of the baseline's peak.

    text: as the user wrote it. size: bytes, or None if `percent` is meant: of the baseline's peak, or, with
    `of_activations`, of that peak without what stays throughout.
    """

    text: str
    size: int | None = None
    percent: Fraction = Fraction(0)
    of_activations: bool = False

    def check_meant(self, least: int, *, shares: bool = True) -> None:
        """Raise InputError if the budget is a small number without a unit, and less than any schedule needs.

        least: bytes that any schedule of the graph needs. shares: percentages are accepted too, for the
        message.
        """
        bare = BARE.fullmatch(self.text)
        # Small, and less than any schedule needs: 8 was meant as 8 GB. A tiny graph's bytes are accepted.
        if self.size is not None and bare and self.size < min(FEW_BYTES, least):
            raise InputError(_both_readings(bare[1], self.size, shares=shares))

    def check_reserve_meant(self, least: int) -> None:
        """Raise InputError if the bytes to leave free are a small number without a unit, in a graph of usual
        size.

        least: bytes that any schedule of the graph needs; for graphs of real models FEW_BYTES or more.
        """
        bare = BARE.fullmatch(self.text)
        if bare and self.size and self.size < FEW_BYTES <= least:
            raise InputError(_reserve_readings(bare[1]))

    def bytes_of(self, plain_peak: int, resident: int) -> int:
        """Return the budget in bytes; fractions of a byte are dropped.

        resident: bytes that stay throughout.
        """
        if self.size is not None:
            return self.size
        stays = resident if self.of_activations else 0
        # A Fraction: 60% of a peak is exact, as floats above 2⁵³ are not.
        return stays + int((plain_peak - stays) * self.percent / 100)

    def echo(self, plain_peak: int, resident: int) -> str:
        """Return '12GB = 12,000,000,000 B = 11.18 GiB', with what a percentage is of."""
        of_plain = f" of the baseline's peak ({format_bytes(plain_peak)})" if self.size is None else ""
        if self.of_activations:
            above = format_bytes(plain_peak - resident)
            of_plain = (
                f" of the {above} that the baseline's peak has above what stays, {format_bytes(resident)}"
            )
        return f"{self.text.strip()}{of_plain} = {spelled(self.bytes_of(plain_peak, resident))}"


def parse_budget(text: str) -> Budget:
    """Parse a budget. Raises InputError: no budget, not above 0, or a number with a fraction and no unit."""
    bare = BARE.fullmatch(text)
    if bare and Fraction(bare[1]).denominator > 1:
        raise InputError(_both_readings(bare[1]))
    match = _PERCENT.fullmatch(text)
    if match:
        budget = Budget(text, percent=Fraction(match[1]), of_activations=bool(match[2]))
    elif "%" in text:
        raise InputError(f"{text!r} is not a percentage, like 60% (of the peak) or 60%a (of the activations)")
    else:
        budget = Budget(text, size=parse_bytes(text))
    if not (budget.size or budget.percent):
        raise InputError(f"{text!r} is not a budget: it must be above 0")
    return budget


def parse_reserve(text: str) -> Budget:
    """Parse the bytes to leave free, 0 too. Raises InputError like parse_budget."""
    bare = BARE.fullmatch(text)
    if bare and Fraction(bare[1]).denominator > 1:
        raise InputError(_reserve_readings(bare[1]))
    return Budget(text, size=parse_bytes(text))


def _reserve_readings(number: str) -> str:
    size = Fraction(number)
    said = "a reserve without a unit is bytes, whole ones"
    if size.denominator == 1:
        said = f"that is {size} byte{'' if size == 1 else 's'}, which no device would notice"
    exact = f", or {size}B for bytes" if size.denominator == 1 else ""
    return f"reserve {number}: {said}: write {number}GB{exact}"


def _both_readings(number: str, size: int | None = None, *, shares: bool = True) -> str:
    """Return a message with both meanings of a number without a unit. size: the bytes that it stands for."""
    share = f"{float(Fraction(number) * 100):g}%" if Fraction(number) < 1 else f"{number}%"
    said = "a budget without a unit is bytes, whole ones"
    if size is not None:
        said = f"that is {size} byte{'' if size == 1 else 's'}, less than any schedule of the graph needs"
    bytes_ = "" if size is None else f", {size}B for bytes"
    share = f"{share} for a share of the baseline's peak, or " if shares else ""
    ways = f"write {share}a unit, like {number}GB{bytes_}"
    return f"budget {number}: {said}: {ways}"


def device_budget(machine: Machine | None) -> Budget | None:
    """Return the capacity of the machine's device as a budget; None if it is unknown."""
    capacity = machine.device_capacity if machine else None
    return Budget("the device's capacity", size=capacity) if capacity else None


def spelled(size: int) -> str:
    """Return '12,000,000,000 B = 11.18 GiB'; a few bytes as '512 B'."""
    exact = f"{size:,} B"
    return exact if size < 1024 else f"{exact} = {format_bytes(size)}"
