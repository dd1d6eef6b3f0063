"""The rules of schedules, and the error that names the one a schedule breaks."""

from __future__ import annotations

from ..graphs.errors import MemplanError

RULES = {
    "initial": "only persistent tensors have an initial place, and each only one",
    "unknown-mode": "an operation runs in a mode that it has",
    "reads-present": "an operation's inputs are in the memory it reads from",
    "reads-complete": "a tensor is readable when all its contributions have run",
    "reads-fresh": "a copy made before the tensor was changed in place is not read",
    "runs-once": "an operation that mutates, or must not be recomputed, runs once",
    "side-of-change": "what stands before a change in place never runs after it, and the reverse",
    "random-order": "first runs of random operations keep traced order",
    "delete-present": "a deleted copy is there",
    "delete-input": "an input is never deleted",
    "delete-last-copy": "the last fresh copy of a persistent tensor is never deleted",
    "transfer-source": "a copied tensor is there, complete and fresh",
    "transfer-link": "a transfer uses a link that the machine has",
    "peers": "shares of weights and states stay on the peers; weights are gathered, gradients scattered",
    "capacity": "each memory stays within its capacity, the device within the budget, what is pinned too",
    "addresses": "copies that are there at once share no byte of the arena, which the budget holds",
    "runs-all": "every operation runs at least once",
    "results": "the results are on some memory, complete and fresh, at the end",
    "persistent-return": "persistent tensors end, fresh, where they began",
}
"""The rules of plan-schedule/1, by the names that errors carry."""


class InvalidScheduleError(MemplanError):
    """A schedule that breaks a rule.

    rule: a key of RULES.  step: index in the list, None for a fault of the whole.
    tensor: the tensor's name, None if no single tensor is at fault.
    """

    def __init__(
        self, rule: str, fault: str, *, step: int | None, what: str = "", tensor: str | None = None
    ) -> None:
        self.rule, self.step, self.tensor = rule, step, tensor
        place = f"step {step} ({what}): " if step is not None else ""
        super().__init__(f"{place}{fault} [{rule}: {RULES[rule]}]")
