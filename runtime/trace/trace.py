"""From a module, an example of its inputs and a loss to the program of one training iteration."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from torch import Tensor

from ..calls.fused import drop_copies, fuse_dropout_masks
from ..calls.scatters import replace_scatters
from ..model.granted import refuse
from ..model.iteration import Iteration, scale_of
from ..program.canonical import named
from ..program.fingerprint import fingerprint
from ..program.program import Program
from ..refusals import TraceError, is_value_dependent, refusal
from ..storage.away import bring_back, hold_of
from ..updates.averaged import with_average
from ..updates.averages import check_summed, with_averages
from ..updates.masters import with_master
from ..updates.optimizers import rules
from ..updates.order import check_order, check_overlaps
from ..updates.scaling import check_scaled, divided
from ..updates.updates import with_sums, with_updates
from .forms import Forms
from .joint import WAYS, Way, joint_graph
from .lowering import lower


def trace(iteration: Iteration, forms: Forms | None = None) -> Program:
    """The program of one iteration, at the shapes of its example inputs and in the module's present mode.

    Neither computes nor allocates: real and fake modules (made under a FakeTensorMode) are traced alike.
    A model whose code asks for the values of its tensors is traced a second time with
    `torch.compiler.is_compiling()` true, since many models then don't ask, and a third time with the values
    of its buffers and of its inputs of whole numbers or bits: then the program holds for those with the same
    answers (values_used.py). Raises TraceError, one line.
    forms: of results that PyTorch's fake kernels have wrong, see settle.py.
    """
    start = perf_counter()
    refuse(iteration.module)
    bring_back(iteration.module.buffers())
    bring_back(filter(_shares_memory, iteration.module.parameters()))
    errors: list[Exception] = []
    for way in WAYS:
        try:
            program = _trace(iteration, forms or {}, way)
        except Exception as error:
            if not is_value_dependent(error) and not errors:
                raise refusal(error) from error
            errors.append(error)
        else:
            break
    else:
        last = errors[-1] if is_value_dependent(errors[-1]) else errors[0]
        raise refusal(last, errors[1]) from last
    if not program.operations:
        raise TraceError("the iteration computes nothing")
    return replace(program, fingerprint=fingerprint(program), trace_seconds=perf_counter() - start)


def _trace(iteration: Iteration, forms: Forms, way: Way) -> Program:
    joint = joint_graph(iteration, forms, way)
    fuse_dropout_masks(joint.graph.graph)
    drop_copies(joint.graph.graph)
    replace_scatters(joint.graph.graph)
    program = named(replace(lower(joint), compiling=way.compiling, used=joint.used, reads=joint.reads))
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
    """Whether it is away, and lay in one memory with another: by its form alone it would have its own."""
    hold = hold_of(parameter)
    return hold is not None and hold.release is None and hold.fill is None and not hold.lost
