"""Loops that people write, around a step: the same weights as in plain PyTorch, bit by bit."""

from __future__ import annotations

import copy
import io
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

ACCUMULATE = 2


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16)) for _ in range(3)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches(count: int = 8) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    lengths = [48] * (count - 1) + [20]
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


def part_of_loss(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output, labels) / ACCUMULATE


class Loop:
    """AdamW, OneCycle, clipping by norm, accumulation, an evaluation behind each update, a checkpoint.

    updates: with those of the weights in the plan, so without clipping and accumulation.
    """

    def __init__(self, module: nn.Module, updates: bool, **options: Any) -> None:
        """options: of memplan.optimize; without any the loop is plain PyTorch's."""
        self.module, self.updates = module, updates
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        self.schedule = OneCycleLR(self.optimizer, max_lr=0.02, total_steps=8)
        self.seen: list[Tensor] = []
        if options:
            optimizer = self.optimizer if updates else None
            inputs = options.pop("inputs")
            self.step = memplan.optimize(module, inputs, loss_fn=part_of_loss, optimizer=optimizer, **options)
        else:
            self.step = None

    def train(self, given: list[tuple[Tensor, Tensor]]) -> None:
        for number, (x, labels) in enumerate(given):
            loss = part_of_loss(self.module(x), labels) if self.step is None else self.step(x, targets=labels)
            if self.step is None or not self.updates:
                loss.backward()
            self.seen.append(loss.detach())
            if self.updates or number % ACCUMULATE == ACCUMULATE - 1:
                self.update()
                self.schedule.step()
                self.evaluate(x)

    def update(self) -> None:
        if not self.updates:
            self.seen.append(nn.utils.clip_grad_norm_(self.module.parameters(), 0.5))
        if not self.updates or self.step is None:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def evaluate(self, x: Tensor) -> None:
        self.module.eval()
        with torch.no_grad():
            self.seen.append(self.module(x).sum())
        self.module.train()

    def saved(self) -> io.BytesIO:
        file = io.BytesIO()
        parts = (self.module, self.optimizer, self.schedule)
        torch.save([*(part.state_dict() for part in parts), torch.get_rng_state()], file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        *states, numbers = torch.load(file)
        for part, state in zip((self.module, self.optimizer, self.schedule), states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(numbers)


@pytest.mark.scripts
@pytest.mark.parametrize("updates", [False, True], ids=["gradients", "updates"])
@pytest.mark.parametrize("moved", [False, True], ids=["device alone", "weights moved"])
def test_a_loop_with_all_that_people_do(moved: bool, updates: bool) -> None:
    """The second half by another loop, which loads what the first has saved."""
    given, module = batches(), model()
    baseline, other = copy.deepcopy(module), copy.deepcopy(module)
    options: dict[str, Any] = {
        "inputs": given[0][0],
        "targets": given[0][1],
        "budget": "75%",
        "machine": Machine(links=Links(1e9, 1e9)) if moved else None,
        "solver": "joint" if moved else "rockmate",
        "time_limit": 0.5,
    }
    eager, first, second = (
        Loop(baseline, updates),
        Loop(module, updates, **options),
        Loop(other, updates, **options),
    )
    torch.manual_seed(11)
    eager.train(given)
    torch.manual_seed(11)
    first.train(given[:4])
    second.load(first.saved())
    second.train(given[4:])

    seen = first.seen + second.seen
    assert len(seen) == len(eager.seen)
    assert all(torch.equal(own, theirs) for own, theirs in zip(seen, eager.seen, strict=True))
    for (name, own), theirs in zip(other.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own, theirs), name
