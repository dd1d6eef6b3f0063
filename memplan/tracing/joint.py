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
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from ..devices.absent_gpu.devices import is_absent_gpu, on_absent_gpu
from ..devices.calls.composite import operators_taken_apart
from ..devices.sharded.local_tensors import local_tensor
from ..devices.storage.offloaded import hold_of
from ..graphs.undisturbed import undisturbed
from ..guards.captured import Captured
from ..guards.python_state import NUMPY_NUMBERS, PYTHON_NUMBERS, PythonState, state_put_back
from ..guards.reads.carried import Counter, StateError
from ..guards.reads.contents import is_plain
from ..guards.reads.forbidden import drawing
from ..guards.reads.reads import Reads
from ..guards.reads.recorder import Recording
from ..guards.values_used import ValuesUsed
from ..model.attached import attributes, named_buffers
from ..model.iteration import Iteration, tensors_in, with_tensors
from ..program.outputs import Output
from ..torch_support.below_autograd import autocast_cache
from ..torch_support.reach import Path
from ..torch_support.torch_fakes import (
    FakeTensor,
    FakeTensorMode,
    addresses_refused,
    dynamo_is_imported,
    fake_kind,
)
from ..torch_support.torch_make_fx import make_fx
from ..torch_support.torch_tensors import attributes_of, memory_of, version_of
from ..torch_support.unsupported import TraceError, first_line
from .api_calls import Question
from .forward_backward import ForwardBackward, Results
from .functional import functional_graph
from .generators import Generators, held_generators
from .host_part import DecidingError, HostPart, Named
from .host_part_trial import HostPartTrial
from .in_a_row import another, refuse_what_moves
from .layer_calls import LayerCalls, refuse_own_formulas
from .layers import MARK, Mark
from .layouts import Forms, TrueFakes
from .trace_context import users_code
from .ways import TracePath, UnrepeatedError, unkept


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
    made: list[Results] = []
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
    runs: list[ForwardBackward] = []

    def iterate(groups: Sequence[Named], captured: Captured) -> tuple[Results, ValuesUsed | None]:
        own_tensors = (
            (name, real, fakes[name])
            for reals, fakes in zip(given[:2], groups[:2], strict=True)
            for name, real in reals.items()
        )
        recording.stand_ins.put(own_tensors, groups[2].items())
        with captured, generators, operators_taken_apart(), autocast_cache(caches):
            before = runs[0].values if runs else None
            run = ForwardBackward(inside, *groups, given=given, way=way, deciding=deciding, before=before)
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
                raise unkept(iteration, keeps[0])
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
        graph=graph,
        parameters=parameters,
        buffers=buffers,
        inputs=inputs,
        has_loss=iteration.has_loss,
        output=output,
        gradients=gradients,
        input_gradients=input_gradients,
        held=held,
        used=used[0],
        reads=reads,
        generators=own,
        host_part=host_part,
    )


def _traced(
    function: Callable[..., list[Tensor]],
    examples: Sequence[Tensor],
    runs: Sequence[ForwardBackward],
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
    run: ForwardBackward,
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
            results = run.recorder.needed | HostPartTrial(part).explore(counters)
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
        run = ForwardBackward(iteration, *groups, given=given, way=way, marks=watch, deciding=set())
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
    return dict(module.named_parameters()), named_buffers(module), tensors_in(iteration.inputs)


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


def _fake_mode(tensors: Sequence[Tensor], forms: Forms) -> FakeTensorMode:
    """Return the mode of a model that is fake already, else a new one."""
    modes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
    with nullcontext() if dynamo_is_imported() else undisturbed():
        return next(modes, None) or TrueFakes(forms)


def _resident(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """Make a fake tensor of one that the iteration is given, on the absent GPU of the trace, if any."""
    made = _fake(mode, tensor)
    return on_absent_gpu(mode, made) if is_absent_gpu() else made


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """Make a fake tensor of a tensor; of an offloaded one by its known form, so that it stays where it is."""
    if isinstance(tensor, FakeTensor):
        return tensor
    local = local_tensor(tensor)
    hold = hold_of(local)
    if hold is None:
        made = mode.from_tensor(local, static_shapes=True)
        if local is tensor:
            return _like(tensor, made)
    else:
        form = hold.form
        with mode:
            made = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
    made = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    return _like(tensor, made)


def _like(tensor: Tensor, made: Tensor) -> Tensor:
    """Give the fake of a parameter what the parameter carries: its class, and its attributes.

    Tensors among the attributes stay real: calls on them are made on their fakes (given.py).
    """
    if isinstance(tensor, nn.Parameter) and local_tensor(tensor) is tensor:
        hold = hold_of(tensor)
        kind = type(tensor) if hold is None else hold.kind
        attributes_of(made).update(attributes(tensor))
        if kind is not nn.Parameter:
            made.__class__ = fake_kind(kind)
    return made
