"""What operations in pieces buy, by `memplan.size(split=True)`: less memory, larger batches."""

from __future__ import annotations

from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import InputError
from torch import nn

TOKENS, WIDTH, WORDS = 512, 32, 20_000


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores = self.head(torch.tanh(self.embedding(words)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def build(batch: int = 1) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Model(), (torch.zeros(batch, TOKENS, dtype=torch.long),)


OPTIONS: dict[str, Any] = {"gpu": "rtx3060", "budget": "300MB", "batch": 1, "time_limit": 2, "split": True}


@pytest.mark.scripts
def test_pieces_need_less_memory_and_hold_more_samples() -> None:
    answer = memplan.size(build, **OPTIONS)
    (found,) = answer.results
    assert found.in_pieces is not None
    assert found.least is not None
    least, largest = found.in_pieces
    assert least is not None
    assert largest is not None
    logits = 4 * TOKENS * WORDS
    assert least.budget < found.least.budget - logits
    assert largest.batch > 4 * 300e6 / logits  # more than logits alone would allow
    assert f"batch {largest.batch:,}" in str(answer)
    document = answer.document()["in_pieces"]
    assert document["smallest_budget"]["budget"] == least.budget
    assert document["largest_batch"]["batch"] == largest.batch


def test_it_is_not_searched_for_unless_asked() -> None:
    answer = memplan.size(build, **OPTIONS | {"split": False, "solver": "store-all"})
    assert answer.document()["in_pieces"] is None
    assert "split" not in str(answer)


def test_several_gpus_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="split= is of one GPU: name one, without ranks="):
        memplan.size(build, **{**OPTIONS, "gpu": ["rtx3060", "rtx3090"]})
