"""The trace of one training iteration: from a module, an example of its inputs and a loss to a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from time import perf_counter

import torch
from torch import Tensor

from ...graphs.errors import MemplanError
from ..absent_gpu.devices import is_absent_gpu
from ..absent_gpu.program import program_on_cuda
from ..calls.fused import drop_copies, fuse_dropout_masks
from ..calls.scatters import replace_scatters
from ..model.guards import refuse, refuse_input
from ..model.iteration import Iteration, refuse_gradients_of_inputs, scale_of, tensors_in
from ..program.canonical import named
from ..program.fingerprint import fingerprint
from ..program.program import Program
from ..storage.offloaded import bring_back, hold_of
from ..unsupported import TraceError, is_value_dependent, refusal, warn_user
from ..updates.averaged import with_average
from ..updates.averages import check_summed, with_averages
from ..updates.catalogue import rules
from ..updates.masters import with_master
from ..updates.order import check_order, check_overlaps
from ..updates.scaling import check_scaled, divided
from ..updates.updates import with_sums, with_updates
from .handed_over import with_handover
from .joint import WAYS, TracePath, forward_calls, joint_graph
from .layouts import Forms
from .lowering import lower
from .repeated import by_some_layers


def trace(iteration: Iteration, forms: Forms | None = None) -> Program:
    """Trace the program of one iteration, at the shapes of its example inputs and in the module's present
    mode.

    Tracing neither computes nor allocates: real and fake modules (made under a FakeTensorMode) are traced in
    the same way. A model whose code asks for the values of its tensors is traced a second time with
    `torch.compiler.is_compiling()` true, since many models then don't ask, and a third time with the values
    of its buffers and of its inputs of whole numbers or bits: then the program holds for those with the same
    answers (values_used.py).

    forms: of results that PyTorch's fake kernels have wrong, see output_layouts.py.

    Raises TraceError, one line.
    """
    start = perf_counter()
    refuse(iteration.module)
    for name, tensor in tensors_in(iteration.inputs).items():
        refuse_input(name, tensor)
    if torch.is_anomaly_enabled():
        warn_user("torch.autograd's anomaly mode is on: a plan's backward does not look for NaN")
    if iteration.has_loss and iteration.trains:
        refuse_gradients_of_inputs(iteration.inputs)
    bring_back(iteration.module.buffers())
    bring_back(filter(_shares_memory, iteration.module.parameters()))
    failed: list[tuple[int, Exception]] = []
    for way in WAYS:
        calls = count()
        try:
            program = _trace(iteration, forms or {}, way, calls)
        except Exception as error:
            if not is_value_dependent(error) and not failed:
                raise refusal(error) from error
            failed.append((next(calls), error))
        else:
            break
    else:
        raise _furthest(failed)
    if not program.operations:
        raise TraceError("the iteration computes nothing")
    return replace(program, fingerprint=fingerprint(program), trace_seconds=perf_counter() - start)


def _furthest(failed: Sequence[tuple[int, Exception]]) -> MemplanError:
    """Return the refusal of the attempt that came furthest.

    failed: per attempt the number of calls of operators that it made, and its error.

    The path for torch.compile counts if values stopped it there too: else that is another program's trouble.
    """
    compiled = next(n for n, way in enumerate(WAYS) if way.compiling)
    able = [n for n, (_calls, error) in enumerate(failed) if n != compiled or is_value_dependent(error)]
    last = max(able, key=lambda n: (failed[n][0], n))
    error = failed[last][1]
    both = last != compiled and is_value_dependent(error)
    made = refusal(error, failed[compiled][1] if both else None)
    made.__cause__ = None if made is error else error
    return made


def _trace(iteration: Iteration, forms: Forms, way: TracePath, calls: Iterator[int]) -> Program:
    """Trace an iteration once.

    calls: counter that advances by one for each call of an operator.
    """

    def whole() -> Program:
        joint = joint_graph(iteration, forms, way, calls)
        fuse_dropout_masks(joint.graph.graph)
        drop_copies(joint.graph.graph)
        replace_scatters(joint.graph.graph)
        program = with_handover(lower(joint))
        return replace(program, compiling=way.compiling, used=joint.used, reads=joint.reads)

    if is_absent_gpu():
        forward = partial(forward_calls, iteration, forms, way)
        program = program_on_cuda(by_some_layers(iteration.module, whole, forward))
    else:
        program = whole()
    program = named(program)
    if iteration.updates is not None:
        program = _with_updates(program, iteration)
    check_order(program)
    check_overlaps(program, iteration)
    return program


def _with_updates(program: Program, iteration: Iteration) -> Program:
    assert iteration.updates is not None
    optimizer, when, clipping, masters, ema = iteration.updates
    found = rules(iteration.module, optimizer)
    if masters:
        found = {
            name: with_master(rule, iteration.module.get_parameter(name)) for name, rule in found.items()
        }
    if ema is not None:
        found = {name: with_average(rule, ema) for name, rule in found.items()}
    clip, scaled = clipping is not None, scale_of(iteration.inputs) is not None
    divides = scaled and divided(optimizer, clip=clip)
    if scaled:
        check_scaled(iteration.module, found, divides=divides)
    sums = iteration.accumulate > 1
    if sums and (clip or when == "after" or iteration.processes is not None):
        if iteration.processes is not None:
            check_summed(program, found)
        program, sums = with_sums(program, found), False
    if iteration.processes is not None:
        program = with_averages(program, iteration.processes)
    return with_updates(program, found, when, clip=clip, sums=sums, scaled=scaled, divides=divides)


def _shares_memory(parameter: Tensor) -> bool:
    """Tell whether an offloaded parameter shared its memory with another: by its form alone it would have
    separate memory.
    """
    hold = hold_of(parameter)
    return hold is not None and hold.release is None and hold.fill is None and not hold.lost
