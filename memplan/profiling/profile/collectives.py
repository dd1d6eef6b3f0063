"""Costs of a program whose collectives need all ranks.

All ranks run each distinct collective equally often, however long that takes one of them: else they would
wait for each other for ever. Its time is the slowest rank's. All else rank 0 measures by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...devices.calls.collectives import collectives_in
from ...devices.device.choice import device_of
from ...devices.measuring.live_bytes import check_profiler
from ...devices.measuring.measure import Measurement, first_run
from ...devices.measuring.synthetic_inputs import SyntheticInputs, signature
from ...devices.sharded.ranks import Ranks
from ...program.program import Program
from ...torch_support.below_autograd import as_traced
from .rounds import Progress, Rounds

RUNS = 5
"""Timed runs of each distinct collective, after one for its memory."""


def measure_collectives(
    program: Program, tensors: Mapping[int, torch.Tensor], ranks: Ranks
) -> dict[int, Measurement]:
    """Measure the collectives of a program, by place. All ranks call this, with equal programs.

    tensors: those of inputs, buffers and constants, by value.
    """
    check_profiler(program.device)
    wanted, device = set(collectives_in(program)), device_of(program.device)
    inputs, known, found = (
        SyntheticInputs(program, tensors),
        dict[object, Measurement](),
        dict[int, Measurement](),
    )
    with as_traced(program.device):
        for place, operation in enumerate(program.operations):
            if place in wanted:
                key = signature(program, operation.call)
                if key not in known:
                    call = inputs.call()
                    peak, sizes = first_run(call, str(program.device), ran=True)
                    # The fastest on this rank; then the slowest rank counts.
                    seconds = min(device.once(call)[1] for _ in range(RUNS))
                    known[key] = Measurement(seconds, 0.0, peak, sizes)
                found[place] = known[key]
            inputs.advance(run=False)
    each = ranks.gathered([(one.seconds, one.peak_bytes) for one in found.values()])
    # Programs are equal, so the places of one rank are those of all.
    slowest = [map(max, zip(*rows, strict=True)) for rows in zip(*each, strict=True)]
    return {
        place: one._replace(seconds=seconds, peak_bytes=peak)
        for (place, one), (seconds, peak) in zip(found.items(), slowest, strict=True)
    }


def measure_around(
    program: Program,
    tensors: Mapping[int, torch.Tensor],
    collectives: Mapping[int, Measurement],
    progress: Progress | None = None,
) -> list[Measurement]:
    """Measure all operations but the collectives, on this rank alone, and return all measurements in order.

    collectives: their measurements, by place.
    """
    check_profiler(program.device)
    others: Sequence[int] = [place for place in range(len(program.operations)) if place not in collectives]
    rounds = Rounds(program, tensors, others, ran=True)
    rounds.run_until_settled(progress)
    found = {**dict(zip(others, rounds.measurements(), strict=True)), **collectives}
    return [found[place] for place in range(len(program.operations))]
