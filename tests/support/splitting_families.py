"""Small models whose largest operations split: language models with losses of several kinds, MLPs,
attention, a CNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from memplan.devices.measuring.measure import Measurement
from memplan.model.iteration import Iteration
from memplan.profiling.profile.profile import measure_program
from memplan.program.program import Program
from memplan.tracing.output_layouts import residents, trace_real_layouts
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH = 400, 16

Loss = Callable[[Tensor, Tensor], Tensor]


class LanguageModel(nn.Module):
    def __init__(self, loss: Loss, *, tied: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=not tied)
        self.loss = loss
        if tied:
            self.head.weight = self.embedding.weight
        self.to(dtype)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.head(torch.tanh(self.layer(self.embedding(words)))), targets)


def cross_entropy(**options: object) -> Loss:
    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(scores.view(-1, WORDS), targets.view(-1), **options)  # pyright: ignore[reportArgumentType]

    return loss


def by_hand(scores: Tensor, targets: Tensor) -> Tensor:
    """logsumexp minus a gather, with a z-loss."""
    total = torch.logsumexp(scores.float(), -1)
    picked = scores.float().gather(-1, targets[..., None])[..., 0]
    return (total - picked).mean() + 1e-3 * total.square().mean()


def masked(scores: Tensor, targets: Tensor) -> Tensor:
    each = functional.cross_entropy(scores.view(-1, WORDS), targets.view(-1), reduction="none")
    counts = (targets.view(-1) > 50).float()
    return (each * counts).sum() / counts.sum()


def weighted(scores: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(weight=torch.linspace(0.1, 2, WORDS))(scores, targets)


LOSSES: dict[str, Loss] = {
    "mean": cross_entropy(),
    "sum": cross_entropy(reduction="sum"),
    "ignored": cross_entropy(ignore_index=3),
    "smoothed": cross_entropy(label_smoothing=0.1),
    "weights": weighted,
    "by hand": by_hand,
    "masked": masked,
}


def by_hand_of_shifted(scores: Tensor, targets: Tensor) -> Tensor:
    scores, targets = scores[:, 1:].float(), targets[:, :-1]
    picked = scores.gather(-1, targets[..., None])[..., 0]
    return (torch.logsumexp(scores, -1) - picked).mean()


SHIFTED: dict[str, Loss] = {
    "contiguous": lambda scores, targets: functional.cross_entropy(
        scores[..., :-1, :].contiguous().view(-1, WORDS), targets[..., 1:].contiguous().view(-1)
    ),
    "ignored": lambda scores, targets: functional.cross_entropy(
        scores[:, :-1].reshape(-1, WORDS), targets[:, 1:].reshape(-1), ignore_index=3
    ),
    "transposed": lambda scores, targets: functional.cross_entropy(
        scores[:, :-1].transpose(1, 2), targets[:, 1:]
    ),
    "of both ends": lambda scores, targets: functional.cross_entropy(
        scores[:, 3:-5].reshape(-1, WORDS), targets[:, 4:-4].reshape(-1), reduction="sum"
    ),
    "by hand": by_hand_of_shifted,
    "log softmax": lambda scores, targets: (
        -(functional.log_softmax(scores[:, :-1].float(), -1).gather(-1, targets[:, 1:, None]).mean())
    ),
}
"""Losses of tokens that predict the next one, or another: logits without the last row, or the first ones."""


class Layers(nn.Module):
    """Layers with a wide hidden layer each, and a residual."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), activation, nn.Linear(256, WIDTH))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


class Attention(nn.Module):
    """Attention whose scores exist as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, _ = x.shape
        q, k, v = self.inner(x).view(samples, tokens, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        later = torch.ones(tokens, tokens).triu(1).bool()
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(later, float("-inf")).softmax(-1)
        return self.outer((scores @ v).transpose(1, 2).reshape(x.shape)).square().mean()


class Images(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module] = lambda _channels: nn.Identity()) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.AvgPool2d(2)),
        )
        self.head = nn.Linear(512, 10)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.features(images).flatten(1)), targets)


class Traced(NamedTuple):
    iteration: Iteration
    program: Program
    measured: list[Measurement]


def words() -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (4, 16)), torch.randint(WORDS, (4, 16))


FAMILIES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    **{f"loss {name}": lambda loss=loss: (LanguageModel(loss), words()) for name, loss in LOSSES.items()},
    "tied": lambda: (LanguageModel(LOSSES["mean"], tied=True), words()),
    "bfloat16": lambda: (LanguageModel(LOSSES["mean"], dtype=torch.bfloat16), words()),
    "GELU": lambda: (Layers(nn.GELU()), (torch.randn(4, 16, WIDTH),)),
    "ReLU": lambda: (Layers(nn.ReLU()), (torch.randn(4, 16, WIDTH),)),
    "dropout": lambda: (Layers(nn.Sequential(nn.GELU(), nn.Dropout(0.1))), (torch.randn(4, 16, WIDTH),)),
    "attention": lambda: (Attention(), (torch.randn(4, 64, WIDTH),)),
    "images": lambda: (Images(), (torch.randn(8, 3, 16, 16), torch.randint(10, (8,)))),
}


def traced(name: str) -> Traced:
    """Trace a family's iteration and measure its operations."""
    torch.manual_seed(0)
    return traced_of(*FAMILIES[name]())


def traced_of(module: nn.Module, inputs: tuple[Tensor, ...]) -> Traced:
    iteration = Iteration(module, inputs)
    program = trace_real_layouts(iteration)
    tensors = residents(program, iteration)
    return Traced(iteration, program, measure_program(program, tensors, ran=True, limit_seconds=0.0))
