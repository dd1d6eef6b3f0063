"""The statement of a training loop's device memory: a total and its parts, one wording for all places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..graphs.units import format_bytes


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of device memory of a whole training loop; their sum is `total`.

    Attributes:
        plan (int): what the schedule has: weights, activations, gradients, states of planned updates.
        states (int, default 0): optimizer states outside of the plan.
        gradients (int, default 0): `.grad` of earlier iterations, outside of the plan.
        other (int, default 0): all else: what libraries keep, other calls that wait for their backward, what
            an optimizer's step takes beyond the rest, states that training leaves during an evaluation.
        owner (str, default ""): name of the optimizer that has the states.
    """

    plan: int
    states: int = 0
    gradients: int = 0
    other: int = 0
    owner: str = ""

    @property
    def total(self) -> int:
        return self.plan + self.states + self.gradients + self.other

    def at_least(self, total: int) -> DeviceMemory:
        """Return the statement of no less than so many bytes; what is missing is of something else."""
        return replace(self, other=self.other + max(0, total - self.total))

    @property
    def extra(self) -> str:
        """The parts besides the plan, as '4.02 MiB of AdamW's states and 2.01 MiB of .grad'."""
        return " and ".join(f"{format_bytes(size)} of {name}" for size, name in self._besides())

    @property
    def parts(self) -> str:
        """The addends, as 'plan 6.20 MiB, AdamW's states 4.02 MiB'; empty if the plan is all there is."""
        rows = list(self._besides())
        texts = (f"{name} {format_bytes(size)}" for size, name in [(self.plan, "plan"), *rows])
        return ", ".join(texts) if rows else ""

    def __str__(self) -> str:
        """The total with its addends, as '12.23 MiB (plan 6.20 MiB, AdamW's states 4.02 MiB, …)'."""
        return f"{format_bytes(self.total)} ({self.parts})" if self.parts else format_bytes(self.total)

    def within(self, limit: DeviceMemory) -> str:
        """Return a peak and its budget, as '10.23 MiB of 12.23 MiB (plan 4.20 MiB, …)': the peak's parts."""
        parts = f" ({self.parts})" if self.parts else ""
        return f"{format_bytes(self.total)} of {format_bytes(limit.total)}{parts}"

    def _besides(self) -> Iterator[tuple[int, str]]:
        states = f"{self.owner}'s states" if self.owner else "states"
        rows = ((self.states, states), (self.gradients, ".grad"), (self.other, "other"))
        return (row for row in rows if row[0])
