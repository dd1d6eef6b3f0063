"""The program of an iteration in the forms in which the kernels here return their results.

Each distinct call runs once, on synthetic inputs, and its results are compared with what the trace says of
them. If they differ, the iteration is traced once more with the real forms: what follows from them, like a
`reshape` that copies after all, is then as eager PyTorch does it. Forms that follow from these come to light
in the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from ..devices.calls.randomness import generators_kept, note_drawing, save_generator
from ..devices.measuring.synthetic_inputs import SyntheticInputs
from ..graphs.errors import OutOfMemoryError
from ..model.attached import named_buffers
from ..model.iteration import Iteration, tensors_in
from ..program.names import full_name
from ..program.program import Operation, Program
from ..torch_support.below_autograd import as_traced
from ..torch_support.out_of_memory import planning
from ..torch_support.torch_tensors import memory_of
from ..torch_support.torch_trees import tree_leaves
from ..torch_support.unsupported import TraceError
from .layouts import Form, Forms, bytes_of, call_key, forms_of, of_those_read, results_of, traced_forms
from .trace import trace

_log = logging.getLogger(__name__)

MOST_ROUNDS = 50


class Runs(Protocol):
    """Way in which operations are run to find the forms of their results."""

    def knows(self, program: Program, place: int) -> bool:
        """Tell whether the forms of an operation's results are known to be those of the trace."""
        ...

    def run(self, program: Program, inputs: SyntheticInputs, call: Callable[[], Any]) -> Any:
        """Run the call of the operation at which the inputs are, and return its result."""
        ...


def trace_real_layouts(
    iteration: Iteration, traced: Program | None = None, runs: Runs | None = None
) -> Program:
    """Trace an iteration until the forms of all results are those that kernels return here.

    iteration: of a model whose tensors are real, on the device on which it is to run.
    traced: result of `trace`, if it has run already.
    runs: how operations are run; None to run each distinct one once.
    """
    known: dict[Hashable, tuple[Form | None, ...]] = {}
    program = trace(iteration) if traced is None else traced
    for _round in range(MOST_ROUNDS):
        comparison = _Comparison(program, residents(program, iteration), known, runs)
        if not comparison.found and not comparison.drawing:
            _log.info("traced: %d operations", len(program.operations))
            return program
        known |= comparison.found
        note_drawing(comparison.drawing)
        program = trace(iteration, known)
    raise TraceError(f"after {MOST_ROUNDS} traces there are still results of another form than traced")


def residents(program: Program, iteration: Iteration) -> dict[int, Tensor]:
    """Return the tensors of buffers, inputs and constants, by value."""
    buffers, inputs = named_buffers(iteration.module), tensors_in(iteration.inputs)
    found = {value: buffers[name] for name, value in program.buffers.items()}
    found |= {value: inputs[name] for name, value in program.inputs.items()}
    return found | dict(program.constants)


class _Comparison:
    """A run of the distinct calls of a program, to compare the forms of their results.

    found: the real forms of calls whose results differ.
    known: the forms that the trace was given before.
    drawing: targets that draw random numbers, which the trace did not know.
    doubtful: storages whose traced form is wrong, or follows from a wrong one.
    short: those in which there is less room than the kernels will expect, so that nothing that reads them is
        run.
    """

    def __init__(
        self, program: Program, tensors: Mapping[int, Tensor], known: Forms, runs: Runs | None
    ) -> None:
        self.found: dict[Hashable, tuple[Form | None, ...]] = {}
        self.drawing: set[Any] = set()
        self._program, self._known, self._runs = program, known, runs
        self._stand_ins = SyntheticInputs(program, tensors)
        self._seen: dict[Hashable, tuple[Form | None, ...]] = {}
        self._doubtful: set[int] = set()
        self._short: set[int] = set()
        with generators_kept(program.random_sources), as_traced(program.device):
            for place, operation in enumerate(program.operations):
                if runs is not None and runs.knows(program, place) and not self._doubts(operation):
                    self._stand_ins.advance()
                else:
                    self._operation(operation)

    def _doubts(self, operation: Operation) -> bool:
        return not self._doubtful.isdisjoint(operation.reads)

    def _operation(self, operation: Operation) -> None:
        doubtful = self._doubts(operation)
        if not self._short.isdisjoint(operation.reads):
            self._skip(operation)
            return
        key = call_key(self._program, operation.call)
        try:
            with planning(operation.name):
                if key not in self._seen:
                    self._seen[key] = self._forms(operation)
                self._stand_ins.advance()
        except TraceError:
            raise
        except Exception as error:
            if not doubtful:
                if isinstance(error, OutOfMemoryError):
                    raise
                text = " ".join(str(error).split())[:300]
                raise TraceError(f"{operation.name} can't run by itself: {text}") from error
            self._skip(operation)
            return
        if doubtful:
            self._doubtful.update(operation.writes)
        self._compare(operation, key)

    def _skip(self, operation: Operation) -> None:
        """Leave the operation to a later round."""
        self._doubtful.update(operation.writes)
        self._short.update(operation.writes)
        self._stand_ins.advance(run=False)

    def _forms(self, operation: Operation) -> tuple[Form | None, ...]:
        call = self._stand_ins.call()
        # An operator of another package may draw without the tag for it; recomputed, it would draw anew.
        before = self._drawn()
        runs, program = self._runs, self._program
        results = results_of(call() if runs is None else runs.run(program, self._stand_ins, call))
        if not operation.random and self._drawn() != before:
            self.drawing.add(operation.call.target)
        taken = {memory_of(tensor) for tensor in _tensors(call)}
        for result, output in zip(results, operation.call.outputs, strict=False):
            new = output is not None and self._program.values[output].storage in operation.writes
            # A backward kernel returns None for the gradient that nobody asked for (BatchNorm's of its
            # input).
            if new and isinstance(result, Tensor) and memory_of(result) in taken:
                name = full_name(operation.call.target)
                raise TraceError(
                    f"{operation.name}: {name} returns its input's memory where it says it doesn't"
                )
        return forms_of(results)

    def _drawn(self) -> list[bytes]:
        return [save_generator(source) for source in self._program.random_sources]

    def _compare(self, operation: Operation, key: Hashable) -> None:
        outputs, forms = operation.call.outputs, self._seen[key]
        traced = traced_forms(self._program, operation.call)
        for output, said, form in zip(outputs, traced, of_those_read(forms, outputs), strict=False):
            if output is None or said is None or form == said:
                continue
            if self._program.values[output].storage in operation.mutates:
                continue  # it lies in a resident, at an offset that a synthetic input has not
            if key in self._known:
                raise TraceError(f"{operation.name} returns {_text(form)}, its trace says {_text(said)}")
            self.found[key] = forms
            storage = self._program.values[output].storage
            self._doubtful.add(storage)
            if form is None or bytes_of(form) > bytes_of(said):
                self._short.add(storage)


def _tensors(call: partial[Any]) -> Iterator[Tensor]:
    leaves = tree_leaves((call.args, call.keywords))
    return (leaf for leaf in leaves if isinstance(leaf, Tensor))


def _text(form: Form | None) -> str:
    if form is None:
        return "no tensor"
    layout = f"strides {list(form.strides)} and offset {form.offset}"
    return f"{form.dtype} {list(form.shape)} with {layout} in memory {form.memory} on {form.device}"
