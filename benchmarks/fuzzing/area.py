"""What a part of the fuzzer has to say: how its cases are made, judged, made smaller and written."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """kind: without figures and names, the same for the same fault of ours. detail: one line."""

    kind: str
    detail: str


class Verdict(NamedTuple):
    """counts: what has been run, by its name."""

    faults: list[Fault]
    counts: dict[str, int]


class Area(ABC):
    """patience: seconds after which a case counts as one that does not come back."""

    name: str
    patience = 60.0

    def warm_up(self) -> None:
        """Compile and import what would else count as the first case's time. Nothing by default."""
        return

    @abstractmethod
    def make(self, random: Random) -> Any:
        """A case. The same random numbers give the same one."""

    @abstractmethod
    def judge(self, case: Any) -> Verdict: ...

    def repeat(self, case: Any, fault: Fault) -> list[Fault]:
        """The faults of a smaller case, as far as they may be `fault`: what shrinking asks."""
        del fault
        return judged(self, case).faults

    def smaller(self, case: Any) -> Iterator[Any]:
        """Smaller cases, the smallest first."""
        del case
        return iter(())

    @abstractmethod
    def write(self, case: Any, folder: Path, fault: Fault | None) -> list[str]:
        """Write the case's files. The command lines, run in that folder, that show the fault."""


def judged(area: Area, case: Any) -> Verdict:
    """What the area does not expect is a fault as well."""
    try:
        return area.judge(case)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return Verdict([Fault(f"raises {type(error).__name__}", f"{where}: {error!r}")], {})
