"""Estimated graphs with regions in pieces: a region's time is that of its calls at the shapes of its pieces.

Its bytes are those of its blocks, and a share of its operations' workspace (splitting/memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...devices.measuring.measure import Measurement
from ...graphs.graph import Phase
from ...graphs.machines.gpus import Gpu
from ...program.graph import Cost
from ...program.program import Operation, Program
from ...torch_support.torch_fakes import TorchDispatchMode
from ..splitting.choice import Choice
from ..splitting.split import Split
from .roofline import launch_seconds, seconds, work_of


class EstimatedSplit(NamedTuple):
    """A program with regions in pieces, and the cost of each of its operations."""

    split: Split
    costs: list[Cost]


class EstimatedPieces:
    """Choices of regions for a program with estimated costs on a GPU."""

    def __init__(self, program: Program, costs: Sequence[Cost], gpu: Gpu) -> None:
        measured: list[Measurement] = []
        for operation, cost in zip(program.operations, costs, strict=True):
            made = sum(program.storages[x].bytes for x in operation.writes)
            measured.append(Measurement(cost.seconds, 0.0, made + cost.workspace_bytes))
        self._choice, self._gpu = Choice(program, measured), gpu
        names = (operation.name for operation in program.operations)
        self._whole = dict(zip(names, costs, strict=True))
        self._known: dict[tuple[str, Phase], tuple[float, float]] = {}

    def within(self, goals: Sequence[int]) -> Iterator[EstimatedSplit]:
        """Yield programs whose largest operation is smaller and smaller, each another one.

        goals: bytes for the largest operation, the largest first.
        """
        before: dict[str, int] = {}
        for goal in goals:
            found = self._choice.within(goal)
            pieces = {} if found is None else {name: cut.pieces for name, cut in found.cuts.items()}
            if found is not None and pieces != before:
                before = pieces
                yield EstimatedSplit(found, [self._cost(one, found) for one in found.program.operations])

    def _cost(self, operation: Operation, found: Split) -> Cost:
        cut = found.cuts.get(operation.name)
        if cut is None:
            return self._whole[operation.name]
        phase = Phase.BACKWARD if operation.phase == Phase.BACKWARD else Phase.FORWARD
        time, launches = self._time(operation, found.program, phase)
        made = sum(found.program.storages[x].bytes for x in operation.writes)
        workspace = max(0, self._choice.peak_bytes(cut) - made)
        return Cost(time, workspace, launch_seconds=launches)

    def _time(self, operation: Operation, program: Program, phase: Phase) -> tuple[float, float]:
        """Return the seconds of a region's kernels, and of their launches. Equal regions are run once."""
        pieces: Any = operation.call.target
        key = pieces.key, phase
        if key not in self._known:
            forms = (program.values[argument.value] for argument in operation.call.arguments)
            inputs = [
                torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")
                for form in forms
            ]
            with _Timed(self._gpu, phase) as timed, torch.no_grad():
                pieces(*inputs)
            self._known[key] = timed.seconds, timed.launches
        return self._known[key]


class _Timed(TorchDispatchMode):
    """Runs calls without data, and adds up the times that each would take on the device and to launch."""

    def __init__(self, gpu: Gpu, phase: Phase) -> None:
        super().__init__()
        self._gpu, self._phase = gpu, phase
        self.seconds = self.launches = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if "device" in keywords:
            # Calls that create tensors name the program's device, which may not be here.
            keywords["device"] = torch.device("meta")
        result = func(*args, **keywords)
        # Views launch no kernel.
        if not func.is_view:
            work = work_of(func, args, keywords, result)
            self.seconds += seconds(work, self._gpu)
            self.launches += launch_seconds(self._phase, work.kind, self._gpu)
        return result
