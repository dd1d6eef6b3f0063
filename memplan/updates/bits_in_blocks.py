"""A trial whether an update has the bits of the whole weight if it is made by blocks of rows.

Elements are updated by themselves, but not all by one piece of code: PyTorch's kernels for CPUs take vectors,
and the elements that are left at the end one by one. Some of them round otherwise there (fused AdamW in
float32, Lion in bfloat16). So blocks begin at multiples of more elements than a kernel takes at once. Kernels
that are not fused give each thread a share of a large tensor, which ends anywhere: with several threads the
update must have the same bits wherever a block begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..devices.absent_gpu.devices import is_absent_gpu
from ..graphs.errors import InputError
from ..program.program import Operation, Program, Ref, Setting, refs
from .early import COEFFICIENT, Coefficient
from .rules import is_fused

ALIGNMENT = 256
"""Elements; a block begins at a multiple. Kernels for CPUs take 64 at once at most."""

_ELEMENTS = 16 * ALIGNMENT + 67
_ALIGNED = (0, ALIGNMENT, 4 * ALIGNMENT, 5 * ALIGNMENT, _ELEMENTS)
_ANYWHERE = (0, 3, 70, 1001, _ELEMENTS)
_STEPS = 3


class BitsInBlocks:
    """Trials of a program's updates, of each kind once, on a few numbers."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._passed = set[str]()

    def check(self, update: Operation) -> None:
        """Raise InputError if kernels of the program's device round otherwise in blocks."""
        call, device = update.call, self._program.device
        dtypes = [self._program.values[value].dtype for value in refs(call.arguments)]
        kind = repr((call.target.__name__, dtypes, sorted(call.keywords.items(), key=str)))
        if is_absent_gpu() or kind in self._passed:  # of a GPU that is not here nothing runs, but estimates
            return
        way = None
        if not self._same(update, dtypes, _ALIGNED):
            way = "leave it out, or give another optimizer or dtype"
        elif (
            device.type == "cpu"
            and torch.get_num_threads() > 1
            and not is_fused(call.target, call.keywords)
            and not self._same(update, dtypes, _ANYWHERE)
        ):
            way = "leave it out, or call torch.set_num_threads(1)"
        if way is not None:
            raise InputError(
                f"block_size=: PyTorch's {update.name} of {dtypes[0]} rounds otherwise in blocks of rows on "
                f"{device.type}: {way}"
            )
        self._passed.add(kind)

    def _same(self, update: Operation, dtypes: Sequence[torch.dtype], bounds: Sequence[int]) -> bool:
        """Tell whether some steps in blocks give the bits of steps of all elements."""
        device, seeded = self._program.device, torch.Generator().manual_seed(0)

        def numbers(dtype: torch.dtype) -> Tensor:
            return torch.randn(_ELEMENTS, generator=seeded, device="cpu").to(device, dtype)

        weight, gradient, *states = dtypes
        whole = [numbers(weight), *(torch.zeros(_ELEMENTS, dtype=each, device=device) for each in states)]
        blocks = [slice(*ends) for ends in pairwise(bounds)]
        apart = [[each[rows].clone() for each in whole] for rows in blocks]
        for step in range(1, _STEPS + 1):
            given = numbers(gradient)
            self._run(update, given, whole, step)
            for rows, own in zip(blocks, apart, strict=True):
                self._run(update, given[rows].clone(), own, step)
        joined = map(torch.cat, zip(*apart, strict=True))
        return all(map(torch.equal, whole, joined))

    def _run(self, update: Operation, gradient: Tensor, changed: Sequence[Tensor], step: int) -> None:
        call = update.call
        lr = self._given(call.arguments[-2])
        keywords = {name: self._given(each) for name, each in call.keywords.items()}
        call.target(changed[0], gradient, *changed[1:], lr, float(step), **keywords)

    def _given(self, argument: Any) -> Any:
        if argument == COEFFICIENT:  # that of a second pass, which multiplies
            half = torch.tensor(0.5, device=self._program.device)
            return Coefficient(half, half)
        if isinstance(argument, Setting):
            return argument.example
        if isinstance(argument, Ref):  # the coefficient of a norm, or whether a gradient is infinite
            form = self._program.values[argument.value]
            number = 0.5 if form.dtype.is_floating_point else 0
            return torch.tensor(number, dtype=form.dtype, device=form.device)
        return argument
