"""The trace of one training iteration: from a module, an example of its inputs and a loss to a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..devices.absent_gpu.devices import is_absent_gpu
from ..devices.absent_gpu.program import program_on_cuda
from ..devices.calls.collectives import join_waits
from ..devices.calls.fused import drop_copies, fuse_dropout_masks
from ..devices.calls.scatters import replace_scatters
from ..devices.sharded.gradients import with_spread_gradients
from ..devices.storage.offloaded import bring_back, hold_of
from ..graphs.errors import MemplanError
from ..guards.reads.carried import StateError
from ..guards.refused_modules import refuse, refuse_input
from ..guards.values_used import is_real
from ..model.attached import settle
from ..model.iteration import Iteration, refuse_gradients_of_inputs, scale_of, tensors_in
from ..program.canonical import named
from ..program.fingerprint import fingerprint
from ..program.program import Program
from ..torch_support.unsupported import TraceError, asks_for_values, refusal, warn_user
from ..updates.averaged import with_average
from ..updates.averages import check_summed, with_averages
from ..updates.buckets import with_buckets
from ..updates.catalogue import rules
from ..updates.masters import in_float32
from ..updates.norm_sums import norm_sums
from ..updates.order import check_order, check_overlaps
from ..updates.row_blocks import with_row_blocks
from ..updates.scaling import check_scaled, divided
from ..updates.updates import with_sums, with_updates
from .gradient_sums import with_sums_in_place
from .handed_over import with_handover
from .joint import forward_calls, joint_graph
from .layouts import Forms
from .lowering import lower
from .order_of_gathers import put_in_place
from .pieces import rewrite_pieces
from .repeated import by_some_layers
from .replaced import ConvertedError, convert
from .ways import WAYS, TracePath, UnkeptError, UnrepeatedError

_succeeded: WeakKeyDictionary[nn.Module, tuple[TracePath, set[str]]] = WeakKeyDictionary()
"""How a module was traced, and the lines that are known to read values which lead to its loss."""


def trace(iteration: Iteration, forms: Forms | None = None) -> Program:
    """Trace the program of one iteration, at the shapes of its example inputs and in the module's present
    mode.

    Tracing neither computes nor allocates: real and fake modules (made under a FakeTensorMode) are traced in
    the same way. A model whose code asks for the values of its tensors is traced a second time with the
    values of its buffers and inputs: then the program holds for those with the same answers (values_used.py).
    If that fails too, it is traced with `torch.compiler.is_compiling()` true: many models then don't ask, but
    may compute something else than eager PyTorch.

    forms: of results that PyTorch's fake kernels have wrong, see output_layouts.py.

    Raises TraceError, one line.
    """
    start = perf_counter()
    refuse(iteration)
    settle(iteration.module)
    if iteration.updates is not None:
        rules(iteration.module, iteration.updates.optimizer)  # refused before each way of tracing is tried
    for name, tensor in tensors_in(iteration.inputs).items():
        refuse_input(name, tensor)
    if torch.is_anomaly_enabled():
        warn_user("torch.autograd's anomaly mode is on: a plan's backward does not look for NaN")
    if iteration.has_loss and iteration.trains:
        refuse_gradients_of_inputs(iteration.inputs)
    bring_back(iteration.module.buffers())
    bring_back(filter(_shares_memory, iteration.module.parameters()))
    failed: list[_Failed] = []
    before, deciding = _succeeded.get(iteration.module, (None, set[str]()))
    ways = (*([] if before is None else [before]), *WAYS)  # also for layouts and for other shapes
    for way in (TracePath(compiling=True),) if iteration.one_path else ways:
        if way.host_part and iteration.purpose == "part":
            continue  # the code of a part of a larger graph runs between the caller's own
        if way.values == "real" and not any(map(is_real, tensors_in(iteration.inputs).values())):
            continue
        dropped = [str(each.error) for each in failed if isinstance(each.error, UnrepeatedError)]
        if way.drops and not dropped:
            continue
        if (program := _attempt(iteration, forms or {}, way, deciding, failed)) is not None:
            if not iteration.one_path:
                _succeeded[iteration.module] = way, deciding
            if dropped and not way.host_part:
                warn_user(dropped[0])
            break
    else:
        raise _furthest(failed)
    if not program.operations:
        raise TraceError("the iteration computes nothing")
    return replace(program, fingerprint=fingerprint(program), trace_seconds=perf_counter() - start)


def _attempt(
    iteration: Iteration, forms: Forms, way: TracePath, deciding: set[str], failed: list[_Failed]
) -> Program | None:
    """Trace an iteration one way, and return its program; note the error if that fails."""
    known = -1
    while known < len(deciding):  # a line that was found to lead to the loss is answered otherwise now
        known, calls = len(deciding), count()
        try:
            return _trace(iteration, forms, way, calls, deciding)
        except ConvertedError as error:
            convert(iteration.module, error)
            return _attempt(iteration, forms, way, deciding, failed)
        except Exception as error:
            goes_on = asks_for_values(error) or isinstance(error, UnkeptError | UnrepeatedError | StateError)
            if way == WAYS[0] and not goes_on:
                raise refusal(error) from error
            failed.append(_Failed(way, next(calls), error))
        if not (way.values and way.host_part):
            break
    return None


class _Failed(NamedTuple):
    """A trace that failed. calls: how many calls of operators it made."""

    way: TracePath
    calls: int
    error: Exception


def _furthest(failed: Sequence[_Failed]) -> MemplanError:
    """Return the refusal of the attempt that came furthest.

    The path for torch.compile does not count: that is another program's trouble.
    """
    failed = [each for each in failed if not isinstance(each.error, UnrepeatedError)]
    able = [each for each in failed if not each.way.compiling]
    # State that the code keeps is the reason whichever way was tried for it.
    kept = [each for each in failed if isinstance(each.error, UnkeptError | StateError)]
    last = kept[0] if kept else max(reversed(able), key=lambda each: each.calls)
    made = refusal(last.error)
    made.__cause__ = None if made is last.error else last.error
    return made


def _trace(
    iteration: Iteration, forms: Forms, way: TracePath, calls: Iterator[int], deciding: set[str]
) -> Program:
    """Trace an iteration once.

    calls: counter that advances by one for each call of an operator.
    deciding: see joint_graph.
    """

    def whole() -> Program:
        joint = joint_graph(iteration, forms, way, calls, deciding)
        fuse_dropout_masks(joint.graph.graph)
        drop_copies(joint.graph.graph)
        replace_scatters(joint.graph.graph)
        rewrite_pieces(joint.graph.graph)
        join_waits(joint.graph.graph, iteration.peers)
        if iteration.gathers:
            put_in_place(joint.graph.graph, joint.parameters)
        return replace(
            with_handover(lower(joint)),
            compiling=way.compiling,
            used=joint.used,
            reads=joint.reads,
            host_part=joint.host_part,
        )

    if is_absent_gpu() and way.host_part:
        program = program_on_cuda(whole())
    elif is_absent_gpu():
        forward = partial(forward_calls, iteration, forms, way)
        program = program_on_cuda(by_some_layers(iteration.module, whole, forward))
    else:
        program = whole()
    program = named(program)
    if iteration.scattered is None:  # ranks scatter gradients, which nothing may change then
        program = with_sums_in_place(program)
    if iteration.updates is not None:
        program = _with_updates(program, iteration)
    check_order(program)
    check_overlaps(program, iteration)
    return program


def _with_updates(program: Program, iteration: Iteration) -> Program:
    assert iteration.updates is not None
    optimizer, when, clipping, masters, ema, wide, early, bucket, block = iteration.updates
    found, weight = rules(iteration.module, optimizer), iteration.module.get_parameter
    mixed = {} if iteration.scattered is None else iteration.scattered.precision
    found = {
        name: in_float32(rule, weight(name), master=masters or name in mixed, sums=wide or name in mixed)
        for name, rule in found.items()
    }
    if ema is not None:
        found = {name: with_average(rule, ema) for name, rule in found.items()}
    clip, scaled = clipping is not None, scale_of(iteration.inputs) is not None
    divides = scaled and divided(optimizer, clip=clip)
    if scaled:
        check_scaled(iteration.module, found, divides=divides)
    if iteration.scattered is not None:
        program = with_spread_gradients(program, iteration.scattered)
    sums = iteration.accumulate > 1
    # Blocks of a weight are updated by a sum that is whole, a bucket by sums to which all is added at once.
    if sums and (clip or when == "after" or iteration.processes is not None or block or bucket):
        if iteration.processes is not None:
            check_summed(program, found)
        program, sums = with_sums(program, found), False
    if iteration.processes is not None:
        program = with_averages(program, iteration.processes)
    norms = norm_sums(iteration.module, iteration.peers) if clip else None
    program = with_updates(
        program,
        found,
        when,
        clip=clip,
        norms=norms,
        sums=sums,
        scaled=scaled,
        divides=divides,
        waits=not early,
    )
    program = with_row_blocks(program, block) if block else program
    return with_buckets(program, bucket) if bucket else program


def _shares_memory(parameter: Tensor) -> bool:
    """Tell whether an offloaded parameter shared its memory with another: by its form alone it would have
    separate memory.
    """
    hold = hold_of(parameter)
    return hold is not None and hold.release is None and hold.fill is None and not hold.lost
