"""Times and bytes of regions in pieces; those of other operations are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...devices.measuring.measure import Measurement
from ...program.program import Program
from ..splitting.split import Split
from .rounds import Rounds

SECONDS = 2.0
"""Seconds of measuring regions after the first round."""


def measured_pieces(
    program: Program, measured: Sequence[Measurement], found: Split, tensors: Mapping[int, Tensor]
) -> list[Measurement]:
    """Return the measurements of a program with regions in pieces.

    program, measured: the whole one, and costs of its operations, in order.
    tensors: those of inputs, buffers and constants, by value of the whole one.
    """
    operations = found.program.operations
    own = [i for i, one in enumerate(operations) if one.name in found.cuts]
    # The same residents have other numbers there.
    places = zip(program.residents, found.program.residents, strict=True)
    given = {new: tensors[old] for old, new in places if old in tensors}
    rounds = Rounds(found.program, given, own, ran=True)
    rounds.run_until_settled(limit_seconds=SECONDS)
    known = dict(zip((one.name for one in program.operations), measured, strict=True))
    known |= zip((operations[i].name for i in own), rounds.measurements(), strict=True)
    return [known[one.name] for one in operations]
