"""MemFerry's options."""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.errors import InputError


@dataclass(frozen=True)
class Settings:
    """choice: exact or published. activations: auto, keep or checkpoint. reserve: share of the gradients'
    bytes. states: that the exact program keeps a layer. flips: ways of single layers that the simulator
    tries at last. twice: weights may leave behind forward and be fetched again, where they don't fit."""

    choice: str = "exact"
    activations: str = "auto"
    reserve: float = 0.0
    states: int = 1000
    flips: int = 50
    twice: bool = True

    def __post_init__(self) -> None:
        for name, value, words in (
            ("choice", self.choice, ("exact", "published")),
            ("activations", self.activations, ("auto", "keep", "checkpoint")),
        ):
            if value not in words:
                raise InputError(f"{name} must be {' or '.join(words)}, not {value!r}")
        if not 0.0 <= self.reserve <= 1.0:
            raise InputError(f"reserve must be from 0 to 1, not {self.reserve}")
        for name, number, least in (("states", self.states, 1), ("flips", self.flips, 0)):
            if number < least:
                raise InputError(f"{name} must be {least} or more, not {number}")
