"""Moccasin's options."""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.errors import InputError
from ...settings_text import check_workers

NAME = "moccasin"


@dataclass(frozen=True)
class Settings:
    """copies: how often an operation may run in the first round. most: in the last round.

    threads: CP-SAT's workers, 0 for one a core. seed: of its search.
    """

    copies: int = 2
    most: int = 3
    threads: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise InputError(f"copies must be 1 or more, not {self.copies}")
        if self.most < self.copies:
            raise InputError(f"most must be at least copies, which is {self.copies}, not {self.most}")
        check_workers(self.threads, 0, "threads")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed must be from 0 to {2**31 - 1:,}, not {self.seed}")
