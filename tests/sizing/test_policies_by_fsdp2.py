"""Bytes of FSDP2's policies, compared with what FSDP2 itself allocates on the CPU.

Its process group does nothing, so one process counts for any number of ranks. Gloo's threads would hold
buffers for longer, by chance.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.machine import Links, Machine
from memplan.graphs.machines.networks import find_network
from memplan.graphs.machines.presets import find_preset
from memplan.planner.simulator.simulate import simulate
from memplan.sizing.loops import Loops
from memplan.sizing.policies import Policies
from memplan.sizing.subject import LoopOptions, open_subject
from sharded_models import EACH, LENGTH, make
from sharded_training import Policies as PrecisionPolicies
from sharded_training import adamw, local, share_bytes, wrapped
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 8
PRECISIONS = {
    "float32": (LoopOptions(), MixedPrecisionPolicy()),
    "bfloat16": (LoopOptions(param_dtype="bfloat16"), MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "reduced in float32": (
        LoopOptions(param_dtype="bfloat16", reduce_dtype="float32"),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ),
}


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def batch_of(size: int) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(size, LENGTH, dtype=torch.int64)
    return {"input_ids": tokens, "labels": tokens.clone()}


def counted(precision: MixedPrecisionPolicy, *, reshard: bool) -> int:
    """Return the most bytes that FSDP2 has at once in forward and backward, with AdamW's states."""
    both = PrecisionPolicies(precision, precision)
    module = wrapped(make("titan"), RANKS, both, reshard_after_forward=reshard)
    optimizer, batch = adamw(module), batch_of(EACH)

    def step() -> None:
        module(**batch).loss.backward()

    step()
    optimizer.step()
    optimizer.zero_grad()
    peak = live_peak(step).peak_bytes
    states = [local(each) for row in optimizer.state.values() for each in row.values() if each.ndim]
    there = [*states, *batch.values(), *module.buffers()]
    return peak + share_bytes(module) + sum(each.nbytes for each in there)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_bytes_are_those_that_fsdp2_allocates(precision: str, reshard: bool) -> None:
    loop, policy = PRECISIONS[precision]

    def build(batch: int = EACH) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        return make("titan"), batch_of(batch)

    peers = find_network("pcie4", RANKS)
    subject = open_subject(build, None, None, "adamw", "in-backward", loop, lambda _line: None)
    reduced = loop.param_dtype and (loop.reduce_dtype or loop.param_dtype)
    loops = Loops(subject.estimates, find_preset("rtx3060"), peers=peers, reduce_dtype=reduced)
    policies = Policies(loops, Machine(links=Links(peers=peers)))
    rows = {row.name: row for row in policies.figures(EACH, 2**50)}
    row = rows["reshard" if reshard else "keep"]
    span, real = policies.span(EACH, row, 0), counted(policy, reshard=reshard)
    assert span.low == pytest.approx(real, rel=0.03)
    assert span.low <= span.expected <= row.least <= span.high
    # A plan gathers each weight by itself, into its own memory.
    planned = simulate(loops.ordinary(EACH).graph, row.schedule, machine=policies.machine).figures
    assert planned.least_budget < 0.9 * real or not reshard
