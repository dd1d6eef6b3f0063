"""Demands at every batch: as computed from the programs there, number by number."""

from __future__ import annotations

import pytest
import torch
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import ModelFile
from memplan.profiling.profile.demand_lines import DemandLine
from memplan.profiling.profile.estimate import demands_of, traced
from memplan.profiling.profile.estimates import Demanded
from memplan.updates.choice import OptimizerChoice
from torch import Tensor, nn

PRESET = find_preset("rtx3060")


class Network(nn.Module):
    """A table, read in part by small batches, whose gradient is sorted from 3,072 rows on; a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.convolution = nn.Conv1d(16, 8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.layer(self.table(tokens)).transpose(1, 2)
        return self.convolution(found).reshape(tokens.shape[0], -1).square().mean()


def build(batch: int = 2) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Network(), (torch.zeros(batch, 12, dtype=torch.int64),)


def demanded() -> Demanded:
    file = ModelFile("m.py", "build", build)
    return Demanded(lambda batch: traced(file, batch, OptimizerChoice("adamw"), PRESET.gpu), frozenset(), {})


@pytest.fixture(scope="module")
def known() -> Demanded:
    found = demanded()
    for batch in (1, 2, 4):
        found.line(batch)
    return found


BATCHES = (2, 3, 7, 31, 32, 33, 100, 166, 167, 255, 256, 257, 300, 2047, 3000, 20_000)


def test_demands_are_those_of_the_program(known: Demanded) -> None:
    for batch in BATCHES:
        line, program = known.line(batch), known.family.program(batch)
        assert line.ends == (2, 32)
        assert known.demands(batch) == demands_of(program), batch
        assert line.bytes(batch).tolist() == [one.bytes for one in program.storages]


def test_there_are_few_kinds_and_some_bend(known: Demanded) -> None:
    line = known.line(100)
    assert len(line.demands(100)) < len(line.kind)
    slopes = {batch: [one.work.bytes for one in line.demands(batch)] for batch in (2, 300, 2000)}
    kinds = zip(*slopes.values(), strict=True)
    straight = [(high - low) * 298 == (middle - low) * 1998 for low, middle, high in kinds]
    assert any(straight)
    assert not all(straight)  # the table


def test_a_batch_that_is_on_no_line_is_one_of_its_own(known: Demanded) -> None:
    line = known.line(1)
    assert line.ends == (1, 1)
    assert known.demands(1) == demands_of(known.family.program(1))
    assert isinstance(line, DemandLine)
