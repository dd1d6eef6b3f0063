"""Iterations in two halves: forward and backward of a module that is part of a larger graph.

    begin ─▶ forward ─outputs─▶ the caller's graph ─cotangents─▶ finish ─▶ backward ─gradients─▶

In between the local variables of a generator hold all that is alive. A begun iteration that nobody finishes
frees it when it is no longer referenced.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..devices.storage.offloaded import Offloaded, bring_back
from ..graphs.errors import MismatchError
from ..model.iteration import Inputs, Iteration, tensors_in
from ..planner.schedule.schedule import Schedule, Verb
from ..program.handover import HANDOVER, example_cotangents
from ..program.program import Program, Value, refs
from ..program.reaching import outputs_reaching
from ..runtime.run.changes import lasting, read_by_backward
from ..runtime.run.cycle import Terms
from ..torch_support.interrupts import deferred_signals
from ..torch_support.torch_tensors import version_of
from .execute import IterationResult, PlannedStep
from .inputs import OtherShapeError

Halves = Generator[tuple[Tensor, ...], Sequence[Tensor | None], Sequence[Tensor]]
"""Code that yields the outputs, is sent the cotangents, and returns all results."""


class Begun:
    """An iteration between its two halves.

    step: whose iteration it is.
    running: the code to go on with, None when it has.
    outputs: by name.
    parameters: those that get a gradient, in the program's order.
    """

    def __init__(
        self,
        step: PlannedPart,
        running: Halves,
        outputs: Mapping[str, Tensor],
        parameters: Sequence[Tensor],
        read: Mapping[str, Tensor],
        nodes: Sequence[GradientEdge],
    ) -> None:
        """Note the versions of what the second half reads.

        read: by name.
        nodes: of the parameters in autograd's graph, to be kept until they are in the caller's.
        """
        self.nodes = nodes
        self.step = step
        self.running: Halves | None = running
        self.outputs, self.parameters = outputs, parameters
        self._versions = [(name, tensor, version_of(tensor)) for name, tensor in read.items()]

    def take(self) -> Halves:
        """Return the code to go on with, once. Raises MismatchError if what it reads was changed."""
        if self.running is None:
            raise MismatchError(
                "a planned module's backward runs once, and it has run, retain_graph=True or not: add the "
                "losses and call backward once, or call the planned module once for each"
            )
        for name, tensor, version in self._versions:
            if version_of(tensor) != version:
                raise MismatchError(
                    f"{name} was changed in place after the planned module was called, and its backward "
                    "reads it: call backward() before optimizer.step(), and change a clone() of a tensor"
                )
        running, self.running = self.running, None
        self._versions.clear()
        return running


class PlannedPart(PlannedStep):
    """An iteration in two halves, by a schedule.

    differentiable: names of the outputs that have a gradient, in the order of their cotangents.
    """

    def __init__(
        self,
        iteration: Iteration,
        program: Program,
        schedule: Schedule,
        terms: Terms | None = None,
        **options: bool,
    ) -> None:
        super().__init__(iteration, program, schedule, terms, **options)
        handover = program.handover
        assert handover is not None
        named = {value: name for name, value in program.outputs.items()}
        self.differentiable = [named[value] for value in refs(handover.call.arguments[0])]
        self._forms = [None if v is None else program.values[v] for v in handover.call.outputs]
        if self.cycle is not None:
            self._run = self.cycle.run_in_halves
        self._input_modes = _input_modes(iteration.inputs)
        later = _read_later(program, schedule) - self._moved
        self._read_residents = lasting(program, (later | read_by_backward(program)) - self._moved)
        self._read_outputs = [
            name for name, value in program.outputs.items() if program.values[value].storage in later
        ]
        self._reaching = outputs_reaching(program, self.differentiable)

    def check(self, inputs: Inputs) -> list[Tensor]:
        """Return the input tensors in the program's order.

        Raises OtherShapeError as other steps do, and if other inputs require a gradient; else MismatchError.
        """
        if (modes := _input_modes(inputs)) != self._input_modes:
            names = sorted(modes ^ self._input_modes)
            raise OtherShapeError(f"whether input {names[0]} requires a gradient is not as in the plan")
        return super().check(inputs)

    def begin(self, inputs: Inputs) -> Begun:
        """Run the first half."""
        given = self.check(inputs)
        tensors = self.check_unchanged()
        parameters = [tensors[name] for name in self.program.gradients]
        bring_back(parameters)
        # Autograd's nodes of these know the form that gradients must have: an offloaded one has another.
        nodes = list(map(get_gradient_edge, parameters))
        changes = self._changes.begin(tensors)
        with deferred_signals():
            residents = (*tensors.values(), *given, *self._owners.constants.values())
            with self._recovery.around(residents):
                self._overlaps.check(residents)
                residents = self._ready(residents)
                with self._running():
                    running: Any = self._run(residents, ())
                    # This runs the code up to the handover.
                    outputs = dict(zip(self.program.outputs, next(running), strict=True))
            self._changes.count(changes)
            self.journal.begin()  # what forward has changed is the caller's from here on
        inputs_by_name = dict(zip(self.program.inputs, given, strict=True))
        own, of_inputs, constants = self._read_residents
        read = {name: tensors[name] for name in own if not isinstance(tensors[name], Offloaded)}
        read |= {f"input {name}": inputs_by_name[name] for name in of_inputs} | constants
        read |= {f"output {name}".strip(): outputs[name] for name in self._read_outputs}
        return Begun(
            step=self, running=running, outputs=outputs, parameters=parameters, read=read, nodes=nodes
        )

    def finish(self, begun: Begun, cotangents: Mapping[str, Tensor | None]) -> IterationResult:
        """Run the second half, and return its gradients.

        cotangents: by output; None, or none, for an output that nothing follows from. What follows from no
            other output gets no gradient.
        """
        given = {name: cotangents.get(name) for name in self.differentiable}
        running = begun.take()
        with deferred_signals(), self._recovery.after_handover():
            with self._running(first=False):
                values = list(map(_in_form, given.values(), self._forms))
                results = _returned(running, values)
            outcome = self._outcome(results)
            # Copies of cotangents are freed before offloaded tensors come back to the device.
            del results, values, running
            if self.cycle is not None:
                self.restore_to_device()  # weights too: the caller's optimizer steps next
        used = {name for name, tensor in given.items() if tensor is not None}
        gradients, of_inputs = (
            {name: g for name, g in group.items() if self._reaching[prefix + name] & used}
            for prefix, group in (("", outcome.gradients), ("inputs.", outcome.input_gradients))
        )
        named = dict(zip(self.program.gradients, begun.parameters, strict=True))
        gradients = {name: gradient.to(named[name].device) for name, gradient in gradients.items()}
        return outcome._replace(gradients=gradients, input_gradients=of_inputs)

    def run(self, inputs: Inputs, *, count: bool = False) -> IterationResult:
        """Run both halves, with the cotangents of a comparison between them."""
        begun = self.begin(inputs)
        outputs = {name: begun.outputs[name] for name in self.differentiable}
        outcome = self.finish(begun, example_cotangents(outputs))
        return outcome._replace(parameters=begun.parameters)


def _in_form(tensor: Tensor | None, form: Value | None) -> Tensor | None:
    """Return a cotangent in the form that the plan takes, in memory of its own.

    tensor: None for zeros.
    form: None for one that nothing follows from.
    """
    if form is None:
        return None
    if tensor is not None:
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes and not tensor.storage_offset()
        # Conjugation and negation are lazy: until they are resolved memory holds other numbers.
        if whole and tensor.stride() == form.strides and not (tensor.is_conj() or tensor.is_neg()):
            return tensor
    made = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
    return made.zero_() if tensor is None else made.copy_(tensor)


def _returned(running: Halves, cotangents: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Send the cotangents, and return what the code returns."""
    try:
        running.send(cotangents)
    except StopIteration as end:
        return end.value
    raise AssertionError("an internal error: a schedule hands over twice")


def _input_modes(inputs: Inputs) -> frozenset[str]:
    """Return the names of the inputs that require a gradient."""
    return frozenset(name for name, tensor in tensors_in(inputs).items() if tensor.requires_grad)


def _read_later(program: Program, schedule: Schedule) -> set[int]:
    """Return the storages that computations after the handover read."""
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE].tolist()
    # In the schedule and not in the program: recomputations after it count too.
    place = next(n for n, run in enumerate(runs) if program.operations[run].call.target is HANDOVER)
    return {x for run in runs[place + 1 :] for x in program.operations[run].reads}
