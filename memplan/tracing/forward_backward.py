"""One iteration as a function of tensors: forward, then torch.autograd.grad, as a trace runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..devices.sharded.gathered import gathered
from ..devices.sharded.local_tensors import around
from ..graphs.errors import InputError
from ..guards.values_used import BUFFERS, INPUTS, is_real
from ..model.attached import attached_places
from ..model.iteration import Iteration, differentiated, forward, with_tensors
from ..program.handover import handover, ordered
from ..program.outputs import Output
from ..torch_support.below_autograd import without_autocast
from ..torch_support.torch_autograd import gradients_of
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_saved_hooks import hooks_refused
from ..torch_support.torch_tensors import memory_of
from ..torch_support.unsupported import TraceError
from .api_calls import Recorder
from .given import given_replaced
from .gradients import check_leaves, other_gradients_refused
from .host_part import Holder, HostPart, Named, result_of
from .known_functions import KnownFunctions
from .known_values import KnownValues
from .layer_calls import LayerCalls
from .layers import OWN_RECOMPUTATION, Marks
from .origins import origin_of
from .replaced import Replaced
from .ways import TracePath


class Results(NamedTuple):
    """Module's output, parameters and inputs that get a gradient, and all tensors that are a result."""

    output: Output
    gradients: list[str]
    input_gradients: list[str]
    tensors: list[Tensor]


class ForwardBackward:
    """One iteration as a function of all it starts from."""

    def __init__(
        self,
        iteration: Iteration,
        parameters: Named,
        buffers: Named,
        inputs: Named,
        *,
        given: Sequence[Named],
        way: TracePath,
        marks: LayerCalls | None = None,
        deciding: set[str],
        before: KnownValues | None = None,
    ) -> None:
        """Prepare one run.

        marks: takes note of the layers, if nothing is traced.
        before: what the run before this one knew.
        """
        self.iteration = iteration
        self.parameters, self.buffers, self.inputs = parameters, buffers, inputs
        attached = attached_places(iteration.module)
        self.registered = {name: tensor for name, tensor in buffers.items() if name not in attached}
        self.given = (*parameters.values(), *buffers.values(), *inputs.values())
        self.given_by_name = given
        trained = parameters.items() if iteration.trains else ()
        handed = inputs.items() if iteration.purpose == "part" else ()
        self.names = {id(tensor): name for name, tensor in given[0].items()}
        self.pairs = list(
            zip((tensor for group in given for tensor in group.values()), self.given, strict=True)
        )
        self.wanted = {name: tensor for name, tensor in trained if tensor.requires_grad}
        self.wanted_inputs = {name: tensor for name, tensor in handed if tensor.requires_grad}
        self.cotangents: list[Tensor] = []
        lines = deciding if way.host_part else None
        usable = self._usable(given, reals=way.values == "real") if way.values else ()
        self.values = None if way.compiling else KnownValues(usable, lines, before, self._origin)
        self.recorder = Recorder(way.guess) if way.host_part else None
        self.expected: Any = ()
        self.results_of_gradients: list[str] = []
        if self.recorder is not None:
            for tensor in self.given:
                self.recorder.calls.number(tensor)
        self.marks = Marks(iteration.module)
        self.layers = marks or self.marks
        self.replaced = Replaced({**parameters, **buffers}, self.pairs)

    def loss(self) -> Tensor:
        """Run forward alone, of an iteration that trains, and return the loss."""
        with (
            given_replaced(self.pairs),
            hooks_refused(OWN_RECOMPUTATION),
            other_gradients_refused(self.parameters),
        ):
            loss, _output = torch.func.functional_call(
                Holder(self.iteration.module), self._state(), (self._forward,)
            )
        return loss

    def _state(self) -> dict[str, Tensor]:
        parameters, buffers, _inputs = self.given_by_name
        reals, named = {**parameters, **buffers}, {**self.parameters, **self.registered}
        return {f"module.{name}": self._whole(name, tensor, reals[name]) for name, tensor in named.items()}

    def _whole(self, name: str, tensor: Tensor, real: Tensor) -> Tensor:
        """Return a tensor as the module computes with it. real: the module's own."""
        shards = self.iteration.shards
        if shards is None or name not in self.parameters:
            return around(tensor, real)
        return gathered(tensor, real.shape[0], shards, name) if self.iteration.gathers else tensor

    def results(self) -> Results:
        state = self._state()
        with given_replaced(self.pairs):
            loss, output, gradients = torch.func.functional_call(
                Holder(self.iteration.module), state, (self._run,)
            )
        if self.recorder is not None:
            changed = [state[f"module.{name}"] for name in self.registered]
            number = self.recorder.calls.numbers.get
            self.expected = result_of(lambda tensor: number(id(tensor)), *self._returned, changed)
        self.replaced.check()
        names: list[str] = []
        of_inputs: list[str] = []
        kept = [*([] if loss is None else [loss]), *output.tensors.values()]
        taken = [_span(tensor) for tensor in (*kept, *self.given, *self.cotangents)]
        wanted = [*self.wanted.items(), *self.wanted_inputs.items()]
        for place, ((name, tensor), gradient) in enumerate(zip(wanted, gradients, strict=True)):
            if gradient is None:
                continue
            if place < len(self.wanted):
                names.append(name)
                kept.append(_as_accumulated(gradient, tensor, taken))
            else:
                of_inputs.append(name)
                kept.append(_apart(gradient, taken))
            taken.append(_span(kept[-1]))
        with torch.no_grad():
            for name, buffer in self.registered.items():
                new = state[f"module.{name}"]
                if new.shape != buffer.shape:
                    raise TraceError(
                        f"the iteration gives the buffer {name} the shape {list(new.shape)}, before it has "
                        f"{list(buffer.shape)}: run the model once before it is planned"
                    )
                if new is not buffer:
                    buffer.copy_(new)
        self.marks.finish()
        self.results_of_gradients = [*names, *of_inputs]
        return Results(output.without_tensors(), names, of_inputs, kept)

    def seen(self) -> list[Tensor]:
        """Return the tensors of the code's calls, by their numbers."""
        return [] if self.recorder is None else self.recorder.calls.tensors

    def host_part(self) -> HostPart:
        assert self.recorder is not None
        return HostPart(
            iteration=self.iteration,
            calls=self.recorder.calls,
            parameters=self.parameters,
            buffers=self.registered,
            inputs=self.inputs,
            expected=self.expected,
            first_guess=self.recorder.guess,
        )

    def _run(self, module: nn.Module) -> tuple[Tensor | None, Output, Sequence[Tensor | None]]:
        if not self.iteration.trains:
            with torch.no_grad(), other_gradients_refused(self.parameters):
                return *self._forward(module), ()
        with (
            hooks_refused(OWN_RECOMPUTATION),
            other_gradients_refused(self.parameters),
        ):
            loss, output = self._forward(module)
            ends = _differentiable(output) if loss is None else [loss]
            with self.marks.backward(ends):
                check_leaves(self.marks.leaves(), self.names)
                if loss is None:
                    cotangents = self.cotangents = self._handed_over(output)
                else:
                    inputs = with_tensors(self.iteration.inputs, self.inputs)
                    ends = [differentiated(self.iteration, loss, inputs)]
                    cotangents = [torch.ones_like(ends[0])]
                # The values too: the gradient of `x[mask] = y` picks by the mask.
                with (
                    self.values or nullcontext(),
                    without_autocast(ends[0].device),
                ):  # as a loop's `loss.backward()`, which is outside
                    wanted = [*self.wanted.values(), *self.wanted_inputs.values()]
                    gradients = gradients_of(ends, wanted, cotangents)
            return loss, output, gradients

    def _handed_over(self, output: Output) -> list[Tensor]:
        """Trace the handover of the outputs, and return the cotangents."""
        with torch.no_grad():
            groups = ([output.tensors[name] for name in names] for names in ordered(output.tensors))
            return handover(*groups)

    def _forward(self, module: nn.Module) -> tuple[Tensor | None, Output]:
        known = KnownFunctions(self.values)
        applied = nullcontext() if self.recorder is None else self.recorder.applied()
        with (
            self.layers.forward(),
            self.values or nullcontext(),
            known,
            self.replaced,
            applied,
            self.recorder or nullcontext(),
        ):
            inputs = with_tensors(self.iteration.inputs, self.inputs)
            loss, output = self._returned = forward(self.iteration, module, inputs)
        with self.values or nullcontext(), known, self.replaced:
            output = self._kept(output)
            return loss if loss is None else _apart(loss, [_span(tensor) for tensor in self.given]), output

    def _kept(self, output: Output) -> Output:
        """Return the output with inputs among its tensors copied: they are the caller's.

        Refuses the module's own tensors.
        """
        own = {memory_of(tensor): name for name, tensor in {**self.parameters, **self.buffers}.items()}
        for name, tensor in output.tensors.items():
            if (weight := own.get(memory_of(tensor))) is not None:
                raise InputError(
                    f"the output {name or 'of the module'} lies in {weight}, which iterations change: read "
                    "it there, and name the tensors that are wanted, like return_outputs=('logits',)"
                )
        taken = [_span(tensor) for tensor in self.inputs.values()]
        tensors: dict[str, Tensor] = {}
        for name, tensor in output.tensors.items():
            tensors[name] = _apart(tensor, taken)
            if self.iteration.purpose == "part":  # autograd counts the caller's changes of each by itself
                taken.append(_span(tensors[name]))
        return output._replace(tensors=tensors)

    def _origin(self, tensors: Sequence[Tensor]) -> str:
        # Of a call like x[mask] those that pick decide, not those that are picked.
        deciding = [tensor for tensor in tensors if not is_real(tensor)] or tensors
        return origin_of(deciding, [*self.parameters.values()], self.inputs.values())

    def _usable(self, given: Sequence[Named], *, reals: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the buffers, and the inputs of whole numbers or bits, whose values are there.

        reals: yield the inputs of real numbers too.
        """
        _parameters, buffers, inputs = given
        used = {name: tensor for name, tensor in inputs.items() if reals or not is_real(tensor)}
        for group, fakes, tensors in ((BUFFERS, self.buffers, buffers), (INPUTS, self.inputs, used)):
            for name, real in tensors.items():
                if not isinstance(real, FakeTensor):
                    yield f"{group}{name}", fakes[name], real


def _differentiable(output: Output) -> list[Tensor]:
    """Return the outputs that require a gradient. Raises InputError if there are none."""
    names, _others = ordered(output.tensors)
    if not names:
        raise InputError(
            "no output of the module depends on a parameter or an input that requires a gradient: there is "
            "no backward to plan"
        )
    return [output.tensors[name] for name in names]


Span = tuple[int, int, int]
"""Identity of the memory a tensor lies in, and its first and last byte there (the last excluded)."""


def _as_accumulated(gradient: Tensor, parameter: Tensor, taken: Sequence[Span]) -> Tensor:
    """Return the gradient as autograd leaves it in `.grad`: in separate memory, in the parameter's layout.

    It is copied only if need be.
    """
    if gradient.is_sparse:
        raise InputError("a gradient is sparse: make the embedding with sparse=False")
    if gradient.stride() == parameter.stride():
        return _apart(gradient, taken)
    return torch.empty_like(parameter).copy_(gradient)


def _apart(tensor: Tensor, taken: Sequence[Span]) -> Tensor:
    """Return the tensor, or a copy if its memory is taken."""
    memory, start, end = _span(tensor)
    overlaps = any(memory == other and start < stop and begin < end for other, begin, stop in taken)
    return tensor.clone() if overlaps else tensor


def _span(tensor: Tensor) -> Span:
    extent = 1 + sum(
        int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    first = int(tensor.storage_offset())
    return memory_of(tensor), first * tensor.itemsize, (first + extent) * tensor.itemsize
