"""Programs at any batch from a few traces: as traced there, or traced there."""

from __future__ import annotations

import pytest
import torch
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import ModelFile
from memplan.profiling.profile.estimate import estimate_file, traced
from memplan.profiling.profile.estimates import Estimates
from memplan.profiling.profile.family import DiffersError, Family, same
from memplan.updates.choice import OptimizerChoice
from torch import nn

PRESET = find_preset("rtx3060")


class Network(nn.Module):
    """Convolutions, attention over a sequence, a table: what has sizes among its arguments."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.convolution = nn.Conv1d(16, 8, 3)

    def forward(self, tokens):
        found = self.layer(self.table(tokens)).transpose(1, 2)
        return self.convolution(found).reshape(tokens.shape[0], -1).square().mean()


def build(batch=2):
    return Network(), (torch.zeros(batch, 12, dtype=torch.int64),)


def pairs(batch=2):
    """Every sample against every other: the square of the batch is no line."""
    layer = nn.Linear(8, 8)
    return layer, (torch.ones(batch, 8),), lambda output: (output @ output.T).square().mean()


def other_from_sixteen(batch=2):
    more = [nn.GELU()] if batch >= 16 else []
    return nn.Sequential(nn.Linear(8, 8), *more), (torch.ones(batch, 8),), torch.sum


def family(function):
    file = ModelFile("m.py", "build", function)
    return Family(lambda batch: traced(file, batch, OptimizerChoice("adamw"), PRESET.gpu).program)


@pytest.mark.scripts
def test_a_line_through_two_traces_is_what_a_third_would_be():
    found = family(build)
    for batch in (1, 2, 4, 8):
        found.program(batch)
    # A batch of 1 has other calls: the line without it is taken, and has still to meet a trace.
    assert (found.held, found.met) == ((2, 32), False)
    before = len(found.traced)
    for batch in (3, 64, 1000):
        assert same(found.program(batch), found.trace(batch))
    assert len(found.traced) == before == 3
    assert found.agrees(2)
    assert max(found.traced) == 1000
    assert found.met
    assert found.agrees(64)
    assert not same(found.program(3), found.program(4))


@pytest.mark.scripts
def test_the_estimate_of_a_batch_is_that_of_its_own_trace():
    file, choice = ModelFile("m.py", "build", build), OptimizerChoice("adamw")
    estimates = Estimates(file, choice, lambda _line: None)
    for batch in (2, 4, 8):
        estimates.graph(batch, PRESET)
    ours, own = estimates.graph(100, PRESET), estimate_file(file, PRESET, batch=100, optimizer=choice)
    assert 100 not in estimates.demanded(PRESET).family.traced
    assert ours.tensors.bytes.tolist() == own.tensors.bytes.tolist()
    assert ours.operations.time.tolist() == own.operations.time.tolist()
    assert ours.operations.workspace.tolist() == own.operations.workspace.tolist()


def test_what_is_no_line_is_traced():
    found = family(pairs)
    for batch in (1, 2, 4, 8):
        found.program(batch)
    assert found.held is None
    assert sorted(found.traced) == [1, 2, 4, 8]
    assert same(found.program(32), found.trace(32))


def test_a_line_that_ends_is_given_up():
    file = ModelFile("m.py", "build", other_from_sixteen)
    estimates = Estimates(file, None, lambda _line: None)
    for batch in (2, 4, 8):
        estimates.graph(batch, PRESET)
    taken = estimates.graph(32, PRESET)
    assert estimates.agrees(4, PRESET)
    assert not estimates.agrees(32, PRESET)
    assert len(estimates.graph(32, PRESET).operations) > len(taken.operations)
    estimates.graph(64, PRESET)
    assert 64 in estimates.demanded(PRESET).family.traced


def test_a_line_that_has_met_no_trace_is_not_believed():
    """A batch of 1 has other calls, and so have those from 16 on."""

    def changes(batch=2):
        return other_from_sixteen(16 if batch == 1 else batch)

    found = family(changes)
    for batch in (1, 2, 4, 32):
        found.program(batch)
    assert (found.held, found.met) == ((2, 4), False)
    assert found.agrees(4)
    assert sorted(found.traced) == [1, 2, 4, 8]
    assert not found.agrees(32)
    assert found.held is None
    assert 32 in found.traced


def test_programs_of_other_calls_are_told_apart():
    one, other = family(build).program(2), family(pairs).program(2)
    assert not same(one, other)
    with pytest.raises(DiffersError):
        Family(lambda _batch: one, {2: one, 4: other})._on_line(2, 4, 3)
