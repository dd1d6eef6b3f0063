"""The budget that a refusal names, given next, trains within it, by default options, as eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.solvers.problem import InfeasibleError
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

ITERATIONS = 3


class Transducer(nn.Module):
    """An RNN-T: two LSTMs, and the sum over all alignments, cell by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(8, 16, batch_first=True)
        self.embedding, self.predictor = nn.Embedding(6, 16), nn.LSTM(16, 16, batch_first=True)
        self.joint = nn.Linear(16, 6)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        frames, texts = self.encoder(x)[0], self.predictor(self.embedding(labels))[0]
        scores = self.joint((frames[:, :, None] + texts[:, None]).tanh()).log_softmax(-1)
        blank, emit = scores[..., 0], scores[..., 1]
        row = functional.pad(emit[:, 0, :-1].cumsum(1), (1, 0))
        for t in range(1, x.shape[1]):
            cells = [row[:, 0] + blank[:, t - 1, 0]]
            for u in range(1, labels.shape[1]):
                cells.append(torch.logaddexp(row[:, u] + blank[:, t - 1, u], cells[-1] + emit[:, t, u - 1]))
            row = torch.stack(cells, 1)
        return -row[:, -1].mean()


class Sparse(nn.Module):
    """Attention to the blocks of keys whose means score highest."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.heads, self.out = nn.Embedding(30, 16), nn.Linear(16, 48), nn.Linear(16, 30)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        made, block = self.embedding(x), 4
        for _layer in range(3):
            q, k, v = self.heads(made).chunk(3, -1)
            means = k.unflatten(1, (-1, block)).mean(2)
            best = (q @ means.mT).topk(2, -1).indices
            mask = torch.zeros(*q.shape[:2], means.shape[1], dtype=torch.bool).scatter(-1, best, True)
            scores = (q @ k.mT).masked_fill(~mask.repeat_interleave(block, -1), -1e9)
            made = made + scores.softmax(-1) @ v
        return functional.cross_entropy(self.out(made).flatten(0, 1), labels.flatten())


class Field(nn.Module):
    """A BiLSTM-CRF's negative log likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(30, 8), nn.LSTM(8, 8, bidirectional=True, batch_first=True)
        self.out, self.moves = nn.Linear(16, 5), nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.out(self.lstm(self.embedding(x))[0])
        total = scores[:, 0]
        for t in range(1, x.shape[1]):
            total = torch.logsumexp(total[:, :, None] + self.moves, 1) + scores[:, t]
        gold = scores.gather(-1, labels[..., None]).sum((1, 2))
        return (total.logsumexp(-1) - gold - self.moves[labels[:, :-1], labels[:, 1:]].sum(1)).mean()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in "abc"]
        self.layers, self.out = nn.Sequential(nn.Conv2d(3, 4, 1), *layers), nn.Linear(4, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.out(self.layers(x).mean((2, 3))), labels)


class Case(NamedTuple):
    """batch: makes one."""

    module: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]


def tokens(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape)


CASES = {
    "transducer": Case(Transducer, lambda: (torch.randn(2, 4, 8), tokens(6, 2, 3))),
    "sparse attention": Case(Sparse, lambda: (tokens(30, 2, 16), tokens(30, 2, 16))),
    "field": Case(Field, lambda: (tokens(30, 4, 8), tokens(5, 4, 8))),
    "images": Case(Images, lambda: (torch.randn(8, 3, 12, 12), tokens(5, 8))),
}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": AdamW,
    "SGD": lambda parameters: SGD(parameters, lr=0.01, momentum=0.9),
}


class Training:
    def __init__(self, name: str, make: Callable[[Any], Optimizer]) -> None:
        torch.manual_seed(0)
        self.module = CASES[name].module()
        self.batches = [CASES[name].batch() for _ in range(ITERATIONS)]
        self.optimizer = make(self.module.parameters())

    def plan(self, budget: int | str, *, inside: bool) -> Any:
        options: dict[str, Any] = {"optimizer": self.optimizer} if inside else {}
        return memplan.optimize(self.module, self.batches[0], budget=budget, progress=False, **options)

    def run(self, step: Callable[..., Any], *, inside: bool) -> list[Tensor]:
        losses: list[Tensor] = []
        for batch in self.batches:
            self.optimizer.zero_grad()
            loss = step(*batch)
            losses.append(loss.detach())
            if not inside:
                loss.backward()
                self.optimizer.step()
            del loss
        return losses

    def bytes(self) -> int:
        """Return the bytes of all that stays, counts of steps not included."""
        rows = self.optimizer.state.values()
        states = [each for row in rows for each in row.values() if isinstance(each, Tensor) and each.dim()]
        stays = [*self.module.parameters(), *self.module.buffers(), *states, *self.batches[0]]
        return sum(each.nbytes for each in stays if each.dim())


@pytest.mark.scripts
@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tiny", ["10%", 1000], ids=["a share", "bytes"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the plan", "outside"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_what_a_refusal_names_trains_within_it(
    name: str, optimizer: str, inside: bool, tiny: int | str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        Training(name, OPTIMIZERS[optimizer]).plan(tiny, inside=inside)
    named = caught.value.percent if isinstance(tiny, str) else caught.value.smallest
    assert named is not None
    eager, planned = (Training(name, OPTIMIZERS[optimizer]) for _ in range(2))
    expected = eager.run(eager.module, inside=False)
    step = planned.plan(named, inside=inside)
    assert list(map(torch.equal, planned.run(step, inside=inside), expected)) == [True] * ITERATIONS
    other = eager.module.state_dict()
    assert all(torch.equal(each, other[key]) for key, each in planned.module.state_dict().items())
    planned.optimizer.zero_grad()
    peak = planned.bytes() + live_peak(lambda: planned.run(step, inside=inside)).peak_bytes
    losses = 4 * ITERATIONS
    assert peak - losses <= step.plan.device.total <= step.plan.limit.total
    if isinstance(named, int):
        assert step.plan.limit.total == named
