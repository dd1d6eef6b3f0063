"""A trial of one kind on one model, and what is seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import torch
from memplan.graphs.errors import MemplanError
from memplan.torch_support.out_of_memory import is_out_of_memory
from memplan.training.plans import training_log
from torch import Tensor

from .kinds import Kind, Must
from .models import State, eager
from .trial import Trial

FIRST, LAST = 30, 60
"""Iterations between which a fault begins."""

WHILE = 60
"""Iterations after which one that is for a while ends."""

SHORT = 24
"""Iterations of a short trial, whose faults begin after the third."""


NO_PLAN = "no plan either"
"""Part of the error of a memory for which no plan is small enough."""

BY_TIMES = ("/s, not", "against the plan")
"""Lines about times that are more than 10 % off."""


class Row(NamedTuple):
    """The result of a trial.

    outcome: what became of it, or what is wrong, after `WRONG`. share: its time over a fresh plan's.
    """

    kind: str
    model: str
    outcome: str
    line: str = ""
    share: float | None = None


WRONG = "WRONG: "


def run(kind: Kind, model: str, seed: int, iterations: int = 200) -> Row:
    """Train so many iterations, the fault among them, and check what the kind must do."""
    chance = Random(f"{kind.name} {model} {seed}")
    with Trial(model, chance, disk=kind.disk, budget=kind.budget) as trial, ExitStack() as faults:
        if kind.disk and not trial.needed[1]:
            return Row(kind.name, model, "its plan has nothing on the disk")
        if kind.when == "before":
            faults.enter_context(kind.fault(trial))
        if kind.before is not None:
            faults.enter_context(kind.before(trial))
        trial.plan()
        return _trained(kind, trial, faults, iterations)


def _trained(kind: Kind, trial: Trial, faults: ExitStack, iterations: int) -> Row:
    short = iterations <= SHORT
    if short:
        # As many as are compared with the plan, and timed after that, must fit.
        faults.enter_context(patch.object(training_log, "ENOUGH", 4))
    begin = 3 if short else trial.chance.randrange(FIRST, LAST)
    begin = 0 if kind.when == "at first" else begin
    until = begin + (8 if short else WHILE) if kind.when == "for a while" else iterations
    known, ended = eager(trial.model, iterations), ""
    while trial.turn < iterations:
        if trial.turn == begin and kind.when != "before" and not ended:
            if begin:
                trial.count_allocations()
            faults.enter_context(kind.fault(trial))
        try:
            trial.iterate()
        except Exception as error:
            if ended or (not isinstance(error, MemplanError) and not is_out_of_memory(error)):
                raise
            ended = " ".join(f"{error} {'; '.join(getattr(error, '__notes__', ()))}".split())
            faults.close()
            if not same(trial.state(), known.states[trial.turn]):
                return Row(
                    kind.name, trial.model, f"{WRONG}after the error the weights are of no iteration", ended
                )
        if trial.turn == until:
            faults.close()
        trial.settled()
    return _seen(kind, trial, known.losses, known.states[-1], ended, short=short)


def _seen(
    kind: Kind, trial: Trial, losses: Sequence[Tensor], state: State, ended: str, *, short: bool
) -> Row:
    found = trial.state()
    lines = [line for line in (ended, *trial.said) if kind.says and kind.says in line]
    line = lines[0] if lines else "; ".join(trial.said)
    faults = list[str]()
    if not all(map(torch.equal, trial.losses, losses)) or not same(found, state):
        faults.append("other bits")
    if (peak := trial.device.requested_peak_bytes()) > trial.limit:
        faults.append(f"{peak:,} bytes on the device, the budget is {trial.limit:,}")
    no_plan = kind.must == Must.REPLAN and NO_PLAN in ended
    if bool(ended) != (kind.must == Must.END) and not no_plan:
        faults.append(f"ended: {ended}" if ended else "it went on")
    if kind.says and not lines and not (kind.says in BY_TIMES and trial.is_as_fast()):
        faults.append("it did not say so")
    share = None
    if kind.compares and not short:
        own, fresh = trial.times_now()
        share = own / fresh
        if share > 1.1:
            faults.append("slower than a fresh plan")
    must = "ends: there is no plan for so little" if no_plan else kind.must.value
    outcome = WRONG + ", ".join(faults) if faults else must
    return Row(kind.name, trial.model, outcome, line, share)


def same(found: State, known: State) -> bool:
    """Tell whether two states have the same tensors, bit by bit."""
    return found.keys() == known.keys() and all(torch.equal(found[name], known[name]) for name in known)
