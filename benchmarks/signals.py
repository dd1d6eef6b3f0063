"""Exceptions by signals at random moments of an iteration: the state is before or after, never between.

Protocol. Each mode trains a small model. Iterations are interrupted by a SIGALRM whose handler raises, each
third one by two Ctrl-C, at random moments within the usual length of a call. All that training goes on from
is compared bitwise with a loop of eager PyTorch that does the same iterations: weights, optimizer states,
master weights, averages, the scaler's scale, gradients where the loop has them. If the state is that before
the call, the call is repeated and has to end as eager's does. A step may refuse to go on until weights are
loaded, as docs/training/changes.md says; they are loaded then and training goes on. With accumulation it may
forget the gradients that it has added up: then the batches of that update are given anew. A signal that comes
when the call has ended is not counted.
Exit code 1 if a state is between, or if there were too few exceptions.

    python benchmarks/signals.py [--exceptions 300] [--seed 0] [--seconds 1200] [--modes NAME…]
"""

from __future__ import annotations

import argparse
import copy
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from random import Random
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

import memplan
import torch
from memplan.graphs.machine import Links, Machine
from memplan.model.accumulated import accumulated
from torch import Tensor, nn

MACHINE = Machine(host_capacity=2**24, links=Links(d2h=1e9, h2d=1e9))
DECAY = 0.9
MODES: dict[str, dict[str, Any]] = {
    "backward by the loop": {},
    "updates in backward": {"update": "in-backward"},
    "updates after backward": {"update": "after"},
    "rollback_on_error": {"rollback_on_error": True},
    "offloaded": {"machine": MACHINE, "budget": "85%"},
    "offloaded, undo": {"machine": MACHINE, "budget": "85%", "rollback_on_error": True},
    "accumulation": {"gradient_accumulation_steps": 3},
    "accumulation, undo": {"gradient_accumulation_steps": 3, "rollback_on_error": True},
    "scaler": {"autocast": torch.float16},
    "masters, averages": {"master_weights": True, "ema": DECAY},
    "another optimizer": {},
    "another shape each time": {"max_plans": 1000, "budget": "16MB"},
}
COLUMNS = ("exceptions", "before", "after", "update anew", "refused", "between")
State = dict[str, Tensor]


class TimedOutError(Exception):
    """Raised by the handler of SIGALRM."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.float().square().mean()


class Training:
    """Module, optimizer and scaler of one mode."""

    def __init__(self, mode: str) -> None:
        torch.manual_seed(0)
        self.mode, self.module = mode, Net()
        if mode == "masters, averages":
            self.module.bfloat16()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if mode == "scaler" else None
        self.optimizer = self.optimizer_of(list(self.module.parameters()))

    def optimizer_of(self, parameters: list[Any]) -> torch.optim.Optimizer:
        if self.mode == "another optimizer":
            return torch.optim.RMSprop(parameters, lr=0.01, foreach=False)
        return torch.optim.AdamW(parameters, lr=0.01, foreach=False)

    def save(self) -> list[Any]:
        return copy.deepcopy([part.state_dict() for part in self._parts()])

    def load(self, saved: list[Any]) -> None:
        for part, state in zip(self._parts(), copy.deepcopy(saved), strict=True):
            part.load_state_dict(state)

    def _parts(self) -> list[Any]:
        return [part for part in (self.module, self.optimizer, self.scaler) if part is not None]

    def states_of(self, parameter: Tensor) -> dict[str, Any]:
        return self.optimizer.state.get(parameter, {})

    def state(self) -> State:
        found = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        for number, parameter in enumerate(self.module.parameters()):
            if self.mode == "backward by the loop" and parameter.grad is not None:
                found[f"{number}.grad"] = parameter.grad.clone()
            for name, value in self.states_of(parameter).items():
                if name != "sum":  # of gradients, until they are used
                    found[f"{number}.{name}"] = torch.as_tensor(value).detach().clone()
        if self.scaler is not None:
            found["scale"] = torch.tensor(self.scaler.get_scale())
        return found


class Eager(Training):
    """A loop of eager PyTorch."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.parts = MODES[mode].get("gradient_accumulation_steps", 1)
        self.masters: list[Tensor] | None = None
        self.averages: list[Tensor] = []
        if "master_weights" in MODES[mode]:
            self.masters = [nn.Parameter(p.detach().float()) for p in self.module.parameters()]
            self.averages = [master.detach().clone() for master in self.masters]
            self.optimizer = self.optimizer_of(self.masters)

    def save(self) -> list[Any]:
        return [*super().save(), copy.deepcopy([self.masters, self.averages])]

    def load(self, saved: list[Any]) -> None:
        super().load(saved[:-1])
        masters, averages = saved[-1]
        with torch.no_grad():
            for own, other in zip(
                (*(self.masters or ()), *self.averages), (*(masters or ()), *averages), strict=True
            ):
                own.copy_(other)

    def states_of(self, parameter: Tensor) -> dict[str, Any]:
        if self.masters is None:
            return super().states_of(parameter)
        number = [id(each) for each in self.module.parameters()].index(id(parameter))
        states = super().states_of(self.masters[number])
        return {**states, "master": self.masters[number], "ema": self.averages[number]} if states else {}

    def iterate(self, batches: list[Tensor]) -> None:
        for x in batches:
            with torch.autocast("cpu", torch.float16, enabled=self.mode == "scaler"):
                loss = self.module(x) / self.parts
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.mode == "backward by the loop":
            return
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.masters is not None:
            self._step_masters(self.masters)
        else:
            self.optimizer.step()
        self.module.zero_grad()

    @torch.no_grad()
    def _step_masters(self, masters: list[Tensor]) -> None:
        for weight, master in zip(self.module.parameters(), masters, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
        self.optimizer.step()
        for weight, master, average in zip(self.module.parameters(), masters, self.averages, strict=True):
            weight.copy_(master)
            average.lerp_(master, 1 - DECAY)


class Planned(Training):
    """A step of memplan."""

    def __init__(self, mode: str, first: Tensor) -> None:
        super().__init__(mode)
        given: dict[str, Any] = {"budget": "100%", "cache": False, "time_limit": 1, "verify": False}
        if mode != "backward by the loop":
            given["optimizer"] = self.optimizer
        if self.scaler is not None:
            given["scaler"] = self.scaler
        self.step = memplan.optimize(self.module, first, **(given | MODES[mode]))

    def call(self, x: Tensor) -> None:
        loss = self.step(x)
        if self.mode == "backward by the loop":
            loss.backward()

    def batches_added(self) -> int:
        """The number of batches in an update that is not complete."""
        sums = accumulated(self.optimizer)
        return 0 if sums is None else sums.batches


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def interrupted(planned: Planned, x: Tensor, moments: list[float]) -> bool:
    """Whether the call raised what a signal's handler raised. One moment: SIGALRM, two: Ctrl-C, twice."""
    begin, sent, raised = threading.Event(), threading.Event(), False

    def send() -> None:
        begin.wait()
        for pause in (moments[0], moments[-1] - moments[0]):
            sleep(pause)
            os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    if len(moments) == 2:
        threading.Thread(target=send).start()
    else:
        sent.set()
    try:
        try:
            if len(moments) == 1:
                signal.setitimer(signal.ITIMER_REAL, moments[0])
            begin.set()
            planned.call(x)
        finally:
            # A signal that comes from here on is after the call.
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (TimedOutError, KeyboardInterrupt):
        raised = True
    quiet = 0  # not by `join`: interrupted, Python takes the thread for ended
    while quiet < 3:
        try:
            sleep(0.001)
            quiet += sent.is_set()
        except (TimedOutError, KeyboardInterrupt):
            quiet = 0
    return raised


class Trial:
    """Iterations of one mode, each with an exception in one of its calls."""

    def __init__(self, mode: str, random: Random) -> None:
        self.mode, self.random, self.times = mode, random, list[float]()
        self.batches = [
            torch.randn(16, 16, generator=torch.Generator().manual_seed(each)) for each in range(5)
        ]
        if "master_weights" in MODES[mode]:
            self.batches = [each.bfloat16() for each in self.batches]
        self.eager, self.planned = Eager(mode), Planned(mode, self.batches[0])
        self.ended = Counter[str]()

    def iterate(self, number: int) -> None:
        eager, planned = self.eager, self.planned
        xs = [self._batch(number) for _ in range(eager.parts)]
        for module in (planned.module, eager.module):
            module.zero_grad()
        saved, saved_planned, before = eager.save(), planned.save(), eager.state()
        eager.iterate(xs)
        after = eager.state()
        where = self.random.randrange(len(xs))
        for each in xs[:where]:
            planned.call(each)
        raised = self._call(number, xs[where])
        try:
            first = where + 1
            if raised:
                found = self._state_after(where, before, after)
                self.ended[found] += 1
                first = {"before": where, "update anew": 0}.get(found, first)
            for each in xs[first:]:
                planned.call(each)
            planned.step.restore_to_device()
        except memplan.MemplanError:
            self.ended["refused"] += 1
            eager.load(saved)
            planned.load(saved_planned)
            return
        now = planned.state()
        if not same(now, after):
            self.ended["between"] += 1
            different = [name for name in after if name not in now or not torch.equal(now[name], after[name])]
            line = f"{self.mode}: between, iteration {number}, raised: {raised}, differs: {different}"
            print(line, file=sys.stderr)
            eager.load(saved)
            planned.load(saved_planned)

    def _batch(self, number: int) -> Tensor:
        """The first call with another shape plans for it."""
        if "max_plans" in MODES[self.mode]:
            return torch.randn(17 + number, 16, generator=torch.Generator().manual_seed(number))
        return self.random.choice(self.batches)

    def _call(self, number: int, x: Tensor) -> bool:
        if len(self.times) < 5:
            began = perf_counter()
            self.planned.call(x)
            self.times.append(perf_counter() - began)
            return False
        moments = [self.random.uniform(0, median(self.times)) for _ in range(2 if number % 3 == 0 else 1)]
        raised = interrupted(self.planned, x, sorted(moments))
        self.ended["exceptions"] += raised
        return raised

    def _state_after(self, where: int, before: State, after: State) -> str:
        """The state in which an interrupted call has left training. Raises MemplanError if it is refused."""
        self.planned.step.restore_to_device()
        if same(now := self.planned.state(), after):
            return "after"
        added = self.planned.batches_added()
        if self.eager.parts > 1 and same(now, before):
            # The first calls of an update change the sums of gradients alone.
            return {0: "update anew", where: "before", where + 1: "after"}.get(added, "between")
        return "before" if same(now, before) else "after"  # "between" is found at the iteration's end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exceptions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    given = parser.parse_args()
    warnings.simplefilter("ignore")

    def time_out(*_: object) -> None:
        raise TimedOutError

    signal.signal(signal.SIGALRM, time_out)
    torch.set_num_threads(1)
    random, share = Random(given.seed), -(-given.exceptions // len(given.modes))
    deadline, total = monotonic() + given.seconds, Counter[str]()
    print("| mode | " + " | ".join(COLUMNS) + " |\n|---" + "|---:" * len(COLUMNS) + "|")
    for mode in given.modes:
        trial, number = Trial(mode, random), 0
        while trial.ended["exceptions"] < share and monotonic() < deadline:
            trial.iterate(number)
            number += 1
        total += trial.ended
        print(f"| {mode} | " + " | ".join(str(trial.ended[each]) for each in COLUMNS) + " |", flush=True)
    print("| all | " + " | ".join(str(total[each]) for each in COLUMNS) + " |")
    sys.exit(1 if total["between"] or total["exceptions"] < given.exceptions else 0)


if __name__ == "__main__":
    main()
