"""Regions in pieces compared with the same operations as a whole, bit by bit, on this machine.

Which kernel a library chooses depends on the number of rows, so only a comparison tells whether pieces have
the bits of the whole. It depends on forms, not on numbers: these are made up, but for inputs, buffers and
constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ...devices.measuring.synthetic_inputs import elements_spanned
from ...program.program import Program, Value
from ...torch_support.below_autograd import as_traced
from ...torch_support.bits import same_bits
from ...torch_support.out_of_memory import is_out_of_memory
from ..fusion.members import Members
from .pieces import Pieces
from .split import Split

_DRAWS = 2
"""Number of comparisons, each on other numbers: a rounding may come out the same by chance."""


class Exactness:
    """Answer to which regions in pieces make the bits of the whole.

    Those that compute the same are compared once.
    """

    def __init__(self, program: Program, tensors: Mapping[int, Tensor]) -> None:
        """Take a program and its tensors of inputs, buffers and constants, by value."""
        self._device = program.device
        self._tensors = tensors
        self._known: dict[str, bool] = {}

    def __call__(self, found: Split) -> bool:
        """Tell whether all regions in pieces came out bitwise. Raises what their calls raise."""
        for members, pieces in found.kernels.values():
            assert isinstance(pieces, Pieces)
            if pieces.key not in self._known:
                self._known[pieces.key] = self._is_bitwise(members, pieces)
            if not self._known[pieces.key]:
                return False
        return True

    def _is_bitwise(self, members: Members, pieces: Pieces) -> bool:
        try:
            with as_traced(self._device):
                return all(self._agree(members, pieces, draw) for draw in range(_DRAWS))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False  # the whole has no memory to be compared in

    def _agree(self, members: Members, pieces: Pieces, draw: int) -> bool:
        given = [*self._inputs(members, draw)]
        whole = members(*given)
        return all(map(same_bits, pieces(*given), whole))

    def _inputs(self, members: Members, draw: int) -> Iterator[Tensor]:
        # A generator of its own: the user's random numbers stay as they are.
        generator = torch.Generator().manual_seed(draw)
        for value in members.inputs:
            known = self._tensors.get(value)
            yield made_up(members.program.values[value], generator) if known is None else known


def made_up(form: Value, generator: torch.Generator) -> Tensor:
    """Return a tensor of this form: normally distributed numbers, masks at random, and zeros for indices."""
    extent = elements_spanned(form)
    if form.dtype.is_floating_point or form.dtype.is_complex:
        flat = torch.randn(extent, generator=generator, device="cpu").to(form.dtype)
    elif form.dtype == torch.bool:
        flat = torch.rand(extent, generator=generator, device="cpu") < 0.5
    else:
        flat = torch.zeros(extent, dtype=form.dtype, device="cpu")
    return flat.to(form.device).as_strided(form.shape, form.strides)
