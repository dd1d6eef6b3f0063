"""A training loop around one planned step, for users without their own; it resumes bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from ..graphs.errors import InputError
from ..model.iteration import Iteration
from ..steps.execute import PlannedStep
from .batches import Batches
from .checkpoints import checkpoint

SECONDS_BETWEEN = 600.0
"""Seconds between two checkpoints, if no number of iterations is requested."""

_UNREAD = 64
"""Losses that are read together: each read waits for the device."""


@dataclass
class Trained:
    """Progress of a training run.

    losses: losses of all iterations, including those before this run.
    before: number of iterations before this run.
    seconds: seconds of each iteration of this run.
    rolled_back: iterations of this run whose early updates were rolled back, and that ran twice.
    """

    losses: list[float]
    before: int
    seconds: list[float]
    rolled_back: int = 0


def train(
    iteration: Iteration,
    step: PlannedStep,
    batches: Batches,
    steps: int,
    folder: Path,
    every: int | None = None,
    tell: Callable[[Trained, bool], None] = lambda _so_far, _saved: None,
) -> Trained:
    """Train until there have been `steps` iterations, from the folder's checkpoint on if there is one.

    every: iterations between two checkpoints; None: some minutes. There is one before the first iteration and
        one after the last.
    tell: callback after iterations, with the progress and whether it is saved.
    Raises MemplanError.
    """
    if iteration.updates is None:
        raise InputError("this plan updates no weights: profile the model with --optimizer")
    run = _Run(iteration, batches, folder)
    known = run.resume()
    so_far = Trained(known, len(known), [])
    unread: list[Tensor] = []
    saved = monotonic()
    for number in range(len(known) + 1, steps + 1):
        begun = perf_counter()
        outcome = step.iterate(next(batches))
        unread.append(cast("Tensor", outcome.loss))
        so_far.rolled_back += outcome.rolled_back
        so_far.seconds.append(perf_counter() - begun)
        due = monotonic() - saved > SECONDS_BETWEEN if every is None else number % every == 0
        if due or number == steps or len(unread) == _UNREAD:
            # Float64 holds losses of any dtype exactly: a resumed list equals an unbroken one.
            so_far.losses += torch.stack(unread).double().tolist()
            unread.clear()
        if due or number == steps:
            run.save(so_far.losses)
            saved = monotonic()
        tell(so_far, due or number == steps)
    return so_far


@dataclass
class _Run:
    iteration: Iteration
    batches: Batches
    folder: Path

    def resume(self) -> list[float]:
        """Return the losses so far from the checkpoint, and load it; without one, write the first."""
        if not checkpoint.is_there(self.folder):
            # A run that dies before its first checkpoint starts over from the same weights.
            self.save([])
            return []
        found = checkpoint.load(self.folder, *self._trained(), {"batches": self.batches})
        # `Step.save` writes checkpoints of the same format, without losses.
        if "losses" not in found:
            raise InputError(f"{self.folder}: the checkpoint there is not one of `plan run`")
        return found["losses"].tolist()

    def save(self, losses: list[float]) -> None:
        extra: dict[str, Any] = {
            "batches": self.batches,
            "losses": torch.tensor(losses, dtype=torch.float64, device="cpu"),
        }
        checkpoint.save(self.folder, *self._trained(), extra)

    def _trained(self) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
        return self.iteration.module, self.iteration.updates and self.iteration.updates.optimizer
