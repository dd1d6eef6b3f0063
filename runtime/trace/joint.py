"""The joint forward-backward graph of one iteration, without side effects until its end.

Two passes with `make_fx` on fake tensors (shapes without data), so no memory is needed whatever the model:

    1. forward, then torch.autograd.grad: what eager PyTorch dispatches, in-place operations included;
    2. that graph without in-place operations (functional.py) but, at the end, a `copy_` for each
       buffer (or other resident) that the iteration changes.

Parameters come in once even if they are tied, so their gradients are summed once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from functools import partial
from io import StringIO
from itertools import count
from typing import Any, Literal, NamedTuple
from weakref import ReferenceType

import torch
from torch import Tensor, fx, nn

from ...graphs.errors import InputError
from ..absent_gpu.devices import is_absent_gpu, on_absent_gpu
from ..below_autograd import autocast_cache, without_autocast
from ..handover import handover, ordered
from ..model.captured import Captured
from ..model.iteration import Iteration, differentiated, forward, tensors_in, with_tensors
from ..model.python_state import NUMPY_NUMBERS, PYTHON_NUMBERS, PythonState, state_put_back
from ..program.outputs import Output
from ..reach import Path
from ..reads.carried import Counter, StateError
from ..reads.contents import is_plain
from ..reads.forbidden import drawing
from ..reads.reads import Reads
from ..reads.recorder import Recording
from ..storage.offloaded import hold_of
from ..torch_internals import (
    FakeTensor,
    FakeTensorMode,
    addresses_refused,
    gradients_of,
    make_fx,
    memory_of,
    version_of,
)
from ..unsupported import TraceError, first_line
from ..values_used import BUFFERS, INPUTS, ValuesUsed
from .api_calls import Question, Recorder
from .functional import functional_graph
from .generators import Generators, held_generators
from .given import given_replaced
from .gradients import check_leaves, other_gradients_refused
from .host_part import DecidingError, Holder, HostPart, result_of
from .host_part_trial import Trial
from .in_a_row import another, refuse_what_moves
from .known_functions import KnownFunctions
from .known_values import KnownValues
from .layer_calls import LayerCalls, refuse_own_formulas
from .layers import MARK, OWN_RECOMPUTATION, Mark, Marks
from .layouts import Forms, TrueFakes
from .replaced import Replaced
from .trace_context import users_code

Named = Mapping[str, Tensor]


class Joint(NamedTuple):
    """The joint forward-backward graph and what its trace has found.

    graph: placeholders = parameters, buffers, inputs; outputs = loss, outputs, gradients of parameters, of
        inputs, in order.
    output: what the module returns.
    gradients: names of the parameters that get one.
    input_gradients: names of the inputs that get one.
    held: of the constants that attributes of the module hold, the path to each, by the tensor's identity.
    used: what the trace has used of values.
    reads: what it has read of Python's objects.
    generators: those that attributes hold, by path.
    host_part: the code, if it is to run once more after each planned iteration.
    """

    graph: fx.GraphModule
    parameters: Named
    buffers: Named
    inputs: Named
    has_loss: bool
    output: Output
    gradients: Sequence[str]
    input_gradients: Sequence[str]
    held: Mapping[int, Path]
    used: ValuesUsed | None = None
    reads: Reads | None = None
    generators: Mapping[Path, torch.Generator] = {}
    host_part: HostPart | None = None

    @property
    def results(self) -> list[str]:
        """Names of the results between the loss and the gradients."""
        return [*self.output.names, *(self.host_part.kept if self.host_part else ())]


class TracePath(NamedTuple):
    """Mode of a trace.

    compiling: trace as `torch.compile` would, with is_compiling() true and no value known.
    values: make the values of buffers and of inputs of whole numbers known, for code that asks for them.
    host_part: run the code once more after each planned iteration, if it keeps or writes what it reads of
        values that do not lead to the loss; "any": also if it does not, like code that only checks them.
    guess: the value with which it is traced then.
    drops: trace code that changes state of the module or loss although nothing repeats that.
    """

    compiling: bool = False
    values: bool = False
    host_part: bool | Literal["any"] = False
    guess: float = 1.0
    drops: bool = False


WAYS = (
    TracePath(),
    TracePath(host_part=True),
    TracePath(compiling=True),
    TracePath(values=True, host_part=True),
    TracePath(values=True),
    TracePath(host_part="any"),
    TracePath(host_part="any", guess=0.0),
    TracePath(drops=True),
)


def joint_graph(
    iteration: Iteration, forms: Forms, way: TracePath, calls: Iterator[int], deciding: set[str]
) -> Joint:
    """Trace the joint graph of an iteration.

    forms: of results whose fakes are wrong.
    calls: counter that advances by one for each call of an operator.
    deciding: lines that read values which lead to the loss; those that are found so are added.
    """
    given = _distinct(iteration)
    flat = [tensor for group in given for tensor in group.values()]
    mode = _fake_mode(flat, forms)
    with addresses_refused(mode):
        parameters, buffers, inputs = ({n: _resident(mode, t) for n, t in group.items()} for group in given)
    examples = [*parameters.values(), *buffers.values(), *inputs.values()]
    # Here, since in the trace the parts of a sparse input can't be read any more.
    inside = iteration._replace(inputs=with_tensors(iteration.inputs, inputs))
    made: list[_Results] = []
    captured = Captured(flat, calls, iteration)
    recording = Recording(
        iteration.module,
        {"loss_fn": iteration.loss_fn, "function": getattr(iteration.module, "code", None)},
        tensors_in(iteration.inputs),
        runs_again=bool(way.host_part),
    )
    used: list[ValuesUsed | None] = []
    own = held_generators(iteration)
    generators = Generators(own)
    caches = torch.is_autocast_cache_enabled()
    runs: list[_ForwardBackward] = []

    def iterate(groups: Sequence[Named], captured: Captured) -> tuple[_Results, ValuesUsed | None]:
        own_tensors = (
            (name, real, fakes[name])
            for reals, fakes in zip(given[:2], groups[:2], strict=True)
            for name, real in reals.items()
        )
        recording.stand_ins.put(own_tensors, groups[2].items())
        with captured, generators, autocast_cache(caches):
            before = runs[0].values if runs else None
            run = _ForwardBackward(inside, *groups, given=given, way=way, deciding=deciding, before=before)
            runs[:] = [run]
            return run.results(), run.values and run.values.tape.used()

    def forward_backward(*tensors: Tensor) -> list[Tensor]:
        following = iter(tensors)
        results, values = iterate([{name: next(following) for name in group} for group in given], captured)
        made[:], used[:] = [results], [values]
        return [*results.tensors, *runs[0].seen()]

    def once_more(batch: Named) -> tuple[list[Tensor], str]:
        results, _values = iterate([parameters, buffers, batch], Captured(flat, count(), iteration))
        return results.tensors, repr((results.gradients, [*filter(is_plain, results.output.rest)]))

    with _tracing(mode, way), closing(recording):
        with state_put_back(iteration, tensors=False) as before:
            with generators.watched(), mode, recording.listening():
                traced = _traced(forward_backward, examples, runs, deciding)
            keeps = before.changes_of_owner() if way.host_part is False else before.changes()
            if keeps and way.host_part is False:
                raise _unkept(iteration, keeps[0])
            recording.note_carried()
            if way == TracePath() and before.changes_of_objects():
                then = PythonState(iteration, tensors=False)
                with generators.watched(), mode:
                    batch = {name: another(tensor) for name, tensor in inputs.items()}
                    make_fx(lambda *_examples: once_more(batch)[0])(*examples)
                if moves := then.changes_of_objects():  # and is no cache, which the first iteration fills
                    raise UnrepeatedError(
                        f"{moves[0]} stays as it is: the code changes it in each iteration, a plan does not"
                    )
            if whose := before.drawn_from(PYTHON_NUMBERS, NUMPY_NUMBERS):
                before.put_back()
                with generators.watched(), mode:
                    place = first_line(lambda: make_fx(forward_backward)(*examples), before.draws)
                raise TraceError(drawing(whose, place or "the iteration "))
            if recording.carried:
                before.put_back()
                with generators.watched(), mode:
                    refuse_what_moves(recording.carried, {**parameters, **buffers}, inputs, once_more)
        held = captured.held_by(iteration)
        reads = recording.reads()
        host_part = None
        if way.host_part:
            run, needed = runs[0], bool(keeps) or way.host_part == "any"
            host_part = _host_part(run, traced, recording.counters, deciding, needed=needed)
        with mode:
            graph = functional_graph(traced, examples, flat, partial(_fake, mode))
    output, gradients, input_gradients, _tensors = made[0]
    return Joint(
        graph,
        parameters,
        buffers,
        inputs,
        iteration.has_loss,
        output,
        gradients,
        input_gradients,
        held,
        used[0],
        reads,
        own,
        host_part,
    )


class UnkeptError(TraceError):
    """Error of code that changes what only its own run changes: lists and numbers of the loop."""


class UnrepeatedError(TraceError):
    """Error of code that changes state of the module or loss in each iteration."""


def _unkept(iteration: Iteration, what: str) -> UnkeptError:
    return UnkeptError(
        f"{_owner(iteration)} changes {what}, which a plan does not repeat in each iteration, and its code "
        "can't run once more after each: leave it out"
    )


def _owner(iteration: Iteration) -> str:
    owner = getattr(iteration.module, "owner", None)
    thing = owner() if isinstance(owner, ReferenceType) else iteration.module
    return f"the loss of {type(thing).__name__}"


def _traced(
    function: Callable[..., list[Tensor]],
    examples: Sequence[Tensor],
    runs: Sequence[_ForwardBackward],
    deciding: set[str],
) -> fx.GraphModule:
    """Trace the function; what fails after questions for values were answered by a guess is due to these."""
    try:
        return make_fx(function)(*examples)
    except Exception as error:
        recorder = runs[0].recorder if runs else None
        if recorder is None or not recorder.calls.questions or isinstance(error, InterruptedError):
            raise
        raise _decided(recorder.calls.questions, deciding) from error


def _decided(questions: Sequence[Question], deciding: set[str]) -> Exception:
    """Note the lines of these questions, and return the error to raise."""
    deciding.update(question.place for question in questions)
    return questions[0].error


def _host_part(
    run: _ForwardBackward,
    traced: fx.GraphModule,
    counters: Sequence[Counter],
    deciding: set[str],
    *,
    needed: bool,
) -> HostPart | None:
    """Return the code to run after each iteration, and give the trace the results that it needs.

    needed: whether it changes anything.
    """
    assert run.recorder is not None
    part, calls = run.host_part(), run.recorder.calls
    if not calls.questions and not needed:
        results: set[int] = set()
    else:
        try:
            results = run.recorder.needed | Trial(part).explore(counters)
        except DecidingError as error:
            if not error.questions:
                raise TraceError("the iteration's code does something else when it runs twice") from error
            raise _decided(error.questions, deciding) from error
    moving = [counter for counter in counters if counter.entries() is None]
    if not (calls.questions or needed):
        moving = list(counters)  # the code will not run once more: a plan would keep them as they are
    if moving and not calls.questions:  # it is read for something else than a record of values
        raise StateError(moving[0].refusal)
    if calls.questions and not (needed or part.printed):
        raise calls.questions[0].error
    output = next(node for node in reversed(traced.graph.nodes) if node.op == "output")
    nodes = list(output.args[0])
    own = len(nodes) - len(calls.tensors)
    given = {calls.numbers[id(tensor)] for tensor in part.inputs.values()}
    memories = set(map(memory_of, run.given))
    for number in sorted(results - given):
        fake, node = calls.tensors[number], nodes[own + number]
        if calls.versions[number] != version_of(fake) or not isinstance(node, fx.Node):
            if number in run.recorder.needed:
                raise calls.questions[0].error
            continue
        part.kept[f"host part {number}"] = number
        if memory_of(fake) in memories or fake.untyped_storage().nbytes() > fake.nbytes:
            with traced.graph.inserting_before(node.next if node.op == "call_function" else output):
                copy = traced.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta, node = {MARK: node.meta.get(MARK, Mark(None, False))}, copy
        nodes.append(node)
    gradients = len(run.results_of_gradients)
    kept = nodes[own + len(calls.tensors) :]
    output.args = ([*nodes[: own - gradients], *kept, *nodes[own - gradients : own]],)
    return part if part.kept or needed or part.printed or calls.questions else None


def forward_calls(
    iteration: Iteration,
    forms: Forms,
    way: TracePath,
    watching: Callable[[Mapping[str, Tensor]], LayerCalls],
) -> LayerCalls:
    """Run forward once as in a trace, without tracing, and return the mode that recorded its calls.

    watching: makes the mode, of the tensors that the iteration starts from, by name.
    """
    given = _distinct(iteration)
    mode = _fake_mode([tensor for group in given for tensor in group.values()], forms)
    with addresses_refused(mode):
        groups = [{name: _resident(mode, tensor) for name, tensor in group.items()} for group in given]
    parameters, buffers, inputs = groups
    watch = watching(parameters | buffers | {f"inputs.{name}": tensor for name, tensor in inputs.items()})
    caches = torch.is_autocast_cache_enabled()
    state = state_put_back(iteration, tensors=False)
    with _tracing(mode, way), state, mode, watch, autocast_cache(caches):
        run = _ForwardBackward(iteration, *groups, given=given, way=way, marks=watch, deciding=set())
        refuse_own_formulas(run.loss())
    return watch


@contextmanager
def _tracing(mode: FakeTensorMode, way: TracePath) -> Generator[None]:
    """Let PyTorch and models do meanwhile what a trace can follow."""
    with (
        users_code(as_compiled=way.compiling),
        addresses_refused(mode),
        torch.autograd.set_multithreading_enabled(False),
        # Anomaly mode looks for NaN, and fake tensors have no values.
        torch.autograd.set_detect_anomaly(False),
        # Values that the trace does not know are guesses here, and are printed for nobody.
        redirect_stdout(StringIO()) if way.host_part else nullcontext(),
    ):
        yield


def residents(iteration: Iteration) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters, buffers and inputs by name, each tensor once."""
    module = iteration.module
    return dict(module.named_parameters()), dict(module.named_buffers()), tensors_in(iteration.inputs)


def _distinct(iteration: Iteration) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters, buffers and inputs as `residents` does, each tensor once.

    An input that is there already, for instance as a target too, becomes a copy: in other batches it is
    another tensor.
    """
    parameters, buffers, inputs = residents(iteration)
    seen = {id(tensor) for tensor in (*parameters.values(), *buffers.values())}
    for name, tensor in inputs.items():
        if id(tensor) in seen:
            inputs[name] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        seen.add(id(tensor))
    return parameters, buffers, inputs


class _Results(NamedTuple):
    """Module's output, parameters and inputs that get a gradient, and all tensors that are a result."""

    output: Output
    gradients: list[str]
    input_gradients: list[str]
    tensors: list[Tensor]


class _ForwardBackward:
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
        self.given = (*parameters.values(), *buffers.values(), *inputs.values())
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
        usable = self._usable(given) if way.values else ()
        self.values = None if way.compiling else KnownValues(usable, lines, before)
        self.recorder = Recorder(way.guess) if way.host_part else None
        self.expected: Any = ()
        self.results_of_gradients: list[str] = []
        if self.recorder is not None:
            for tensor in self.given:
                self.recorder.calls.number(tensor)
        self.marks = Marks(iteration.module)
        self.layers = marks or self.marks
        self.replaced = Replaced({**parameters, **buffers})

    def loss(self) -> Tensor:
        """Run forward alone, of an iteration that trains, and return the loss."""
        with (
            given_replaced(self.pairs),
            torch.autograd.graph.disable_saved_tensors_hooks(OWN_RECOMPUTATION),
            other_gradients_refused(self.parameters),
        ):
            loss, _output = torch.func.functional_call(
                Holder(self.iteration.module), self._state(), (self._forward,)
            )
        return loss

    def _state(self) -> dict[str, Tensor]:
        return {f"module.{name}": tensor for name, tensor in {**self.parameters, **self.buffers}.items()}

    def results(self) -> _Results:
        state = self._state()
        with given_replaced(self.pairs):
            loss, output, gradients = torch.func.functional_call(
                Holder(self.iteration.module), state, (self._run,)
            )
        if self.recorder is not None:
            changed = [state[f"module.{name}"] for name in self.buffers]
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
            for name, buffer in self.buffers.items():
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
        return _Results(output.without_tensors(), names, of_inputs, kept)

    def seen(self) -> list[Tensor]:
        """Return the tensors of the code's calls, by their numbers."""
        return [] if self.recorder is None else self.recorder.calls.tensors

    def host_part(self) -> HostPart:
        assert self.recorder is not None
        return HostPart(
            self.iteration,
            self.recorder.calls,
            self.parameters,
            self.buffers,
            self.inputs,
            self.expected,
            self.recorder.guess,
        )

    def _run(self, module: nn.Module) -> tuple[Tensor | None, Output, Sequence[Tensor | None]]:
        if not self.iteration.trains:
            with torch.no_grad(), other_gradients_refused(self.parameters):
                return *self._forward(module), ()
        with (
            torch.autograd.graph.disable_saved_tensors_hooks(OWN_RECOMPUTATION),
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

    def _usable(self, given: Sequence[Named]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the buffers, and the inputs of whole numbers or bits, whose values are there."""
        _parameters, buffers, inputs = given
        whole = {
            name: real for name, real in inputs.items() if not (real.is_floating_point() or real.is_complex())
        }
        for group, fakes, reals in ((BUFFERS, self.buffers, buffers), (INPUTS, self.inputs, whole)):
            for name, real in reals.items():
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


def _fake_mode(tensors: Sequence[Tensor], forms: Forms) -> FakeTensorMode:
    """Return the mode of a model that is fake already, else a new one."""
    modes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
    return next(modes, None) or TrueFakes(forms)


def _resident(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """Make a fake tensor of one that the iteration is given, on the absent GPU of the trace, if any."""
    made = _fake(mode, tensor)
    return on_absent_gpu(mode, made) if is_absent_gpu() else made


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """Make a fake tensor of a tensor; of an offloaded one by its known form, so that it stays where it is."""
    if isinstance(tensor, FakeTensor):
        return tensor
    hold = hold_of(tensor)
    if hold is None:
        return mode.from_tensor(tensor, static_shapes=True)
    form = hold.form
    with mode:
        made = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
