"""A small model, its optimizer and its step, with the loops that people write around a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memplan
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.solvers.problem import InfeasibleError
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, AdamW, Optimizer

WIDTH, LENGTH = 32, 256
ITERATIONS = 5

Make = Callable[[Any], Optimizer]


def adam(parameters: Any) -> Optimizer:
    return AdamW(parameters, lr=0.01)


class Loops:
    """A model, its optimizer and its step; each method is a loop's iteration."""

    def __init__(self, make: Make, loop: Callable[[Loops, int], None], **options: Any) -> None:
        torch.manual_seed(3)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, 4))
        self.x, self.y = torch.randn(LENGTH, WIDTH), torch.randint(4, (LENGTH,))
        self.make, self.loop, self.options = make, loop, options
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.step: Any = None
        self.held: list[Tensor] = []

    def plan(self, budget: int | str, **options: Any) -> int:
        """Plan, and return the bytes of the budget."""
        options = self.options | options
        make = options.pop("inside", None)
        self.optimizer = (make or self.make)(self.model.parameters())
        if make is not None:
            options["optimizer"] = self.optimizer
        given = {"solver": "rotor", "verify": False, "cache": False, "loss_fn": functional.cross_entropy}
        self.step = memplan.optimize(self.model, self.x, targets=self.y, budget=budget, **(given | options))
        return self.step.plan.budget + self.step._executor.planner.outside.bytes

    def train(self) -> None:
        for number in range(ITERATIONS):
            self.loop(self, number)

    def peak(self) -> int:
        """Return the peak of all iterations, weights included: made anew, so that they are counted."""

        def train() -> None:
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()
            self.train()

        return sum(tensor.nbytes for tensor in (self.x, self.y, *self.held)) + live_peak(train).peak_bytes

    def loss(self) -> Tensor:
        return self.step(self.x, targets=self.y)

    def zero_grad_first(self, _number: int) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def zero_grad_between(self, _number: int) -> None:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def zero_grad_last(self, _number: int) -> None:
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def accumulate(self, number: int) -> None:
        (self.loss() / 2).backward()
        if number % 2 == 1:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def clip(self, _number: int) -> None:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.optimizer.step()

    def closure(self, _number: int) -> None:
        """Lightning's automatic optimization."""

        def closure() -> Any:
            loss = self.loss()
            self.optimizer.zero_grad()
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def scaled(self, _number: int) -> None:
        loss = self.loss()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def planned(self, _number: int) -> None:
        """The optimizer is the step's, option `inside`."""
        self.loss()

    def averaged(self, number: int) -> None:
        self.zero_grad_between(number)
        with torch.no_grad():
            for mean, parameter in zip(self.held, self.model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)


def momentum(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.01, momentum=0.9)


def foreach(parameters: Any) -> Optimizer:
    return AdamW(parameters, foreach=True)


LOOPS = {
    "zero_grad first": (adam, Loops.zero_grad_first, {}),
    "zero_grad first, freed": (adam, Loops.zero_grad_first, {"gradients": "freed"}),
    "zero_grad between": (adam, Loops.zero_grad_between, {}),
    "zero_grad last": (adam, Loops.zero_grad_last, {}),
    "zero_grad last, freed": (foreach, Loops.zero_grad_last, {"gradients": "freed"}),
    "accumulate": (adam, Loops.accumulate, {}),
    "clip": (adam, Loops.clip, {}),
    "closure": (adam, Loops.closure, {}),
    "SGD": (momentum, Loops.zero_grad_between, {}),
    "foreach": (foreach, Loops.zero_grad_between, {}),
    "scaler": (adam, Loops.scaled, {}),
    "Adagrad": (Adagrad, Loops.accumulate, {}),
}


def smallest(loops: Loops) -> int:
    """Return the smallest budget that is not refused, by the refusals' own figures."""
    budget = 2000
    while (refusal := refused(loops, budget)) is not None:
        assert refusal.budget == budget
        assert refusal.least is not None
        assert refusal.least > budget
        budget = refusal.least
    return budget


def refused(loops: Loops, budget: int) -> InfeasibleError | None:
    try:
        loops.plan(budget)
    except InfeasibleError as refusal:
        return refusal
