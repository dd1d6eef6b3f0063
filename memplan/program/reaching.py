"""The outputs that each gradient follows from, in an iteration that is part of a larger graph."""

from __future__ import annotations

from collections.abc import Sequence

from .program import Program


def outputs_reaching(program: Program, differentiable: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return, per gradient, the outputs that it follows from.

    Gradients are known by the parameter's name, those of inputs as `inputs.x`.

    differentiable: names of the outputs that have a gradient, in the order of the handover.
    """
    handover, none = program.handover, frozenset[str]()
    assert handover is not None
    follows = {x: frozenset((name,)) for x, name in zip(handover.writes, differentiable, strict=True)}
    for operation in program.operations:
        found = none.union(*(follows.get(x, none) for x in operation.reads))
        if found:  # sums of gradients are made in place: each addition contributes to the first summand
            changed = (*operation.writes, *operation.mutates)
            follows |= {x: follows.get(x, none) | found for x in changed}
    gradients = {**program.gradients, **{f"inputs.{name}": v for name, v in program.input_gradients.items()}}
    return {name: follows.get(program.values[value].storage, none) for name, value in gradients.items()}
