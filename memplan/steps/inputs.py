"""The check whether a batch is one that a plan is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..graphs.errors import MismatchError
from ..guards.reads.contents import content
from ..guards.reads.reads import short
from ..model.iteration import Inputs, Labelled, leaves_in, others_in, unscaled
from ..program.forms import described, form_of
from ..program.program import Program, Value, values_read
from ..runtime.codegen.views import AS_STRIDED
from ..torch_support.raw import is_simple


class OtherShapeError(MismatchError):
    """Error of inputs that differ from the plan's in their shapes, strides or dtypes alone, in the arguments
    that are given, or in values that the trace has used.

    Another plan can be made for them.
    """


class UsedValuesError(OtherShapeError):
    """Error of a batch of the plan's shapes whose values decide otherwise than those of the plan's batch."""


class OtherValuesError(OtherShapeError):
    """Error of a batch for which the iteration's code reads other values of Python's objects than the trace
    did.

    Another plan can be made for it.
    """


class OtherModeError(OtherShapeError):
    """Error of a module that freezes other parameters, has submodules in another mode or runs under another
    autocast than the plan's.

    Another plan can be made for it.
    """


class Expected:
    """The inputs of a plan: their names, forms, and the inputs that are not tensors."""

    def __init__(self, program: Program, inputs: Inputs) -> None:
        self._forms = {name: program.values[value] for name, value in program.inputs.items()}
        placed = {program.values[value].storage for value in _placed(program)}
        self._placed = {name for name, form in self._forms.items() if form.storage in placed}
        self._others = {name: (other, content(other)) for name, other in others_in(inputs).items()}
        self._labelled = isinstance(unscaled(inputs), Labelled)

    def read(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return the input tensors in the program's order.

        Raises OtherShapeError if only their shapes or dtypes differ from the plan's, else MismatchError.
        """
        tensors, others = leaves_in(inputs)
        if self._labelled and not isinstance(unscaled(inputs), Labelled):
            raise MismatchError("input targets is missing: give labels by name, step(…, targets=…)")
        _same_names(tensors, self._forms, inputs)
        _same_names(others, self._others, inputs)
        for name, (other, known) in self._others.items():
            now = others[name]
            same_kind = type(now) is type(other)  # 1 is not True: tensors and code tell them apart
            if now is other or (same_kind and is_simple(now) and now == other):
                continue
            if content(now) != known:
                raise OtherValuesError(f"input {name} is {short(now)}; the plan is for {short(other)}")
        found = [(name, form_of(tensors[name], form), form) for name, form in self._forms.items()]
        for name in self._placed:
            if (offset := int(tensors[name].storage_offset())) != self._forms[name].offset:
                raise OtherShapeError(
                    f"input {name} begins at element {offset} of its memory; the plan is for one that begins "
                    f"at {self._forms[name].offset}, since the code calls as_strided with a place in it"
                )
        # All devices before all shapes: another plan mends a shape, but not a device.
        for name, there, form in found:
            if there.device != form.device:
                raise MismatchError(_other_form(name, there, form))
        for name, there, form in found:
            if there != form:
                raise OtherShapeError(_other_form(name, there, form))
        return {name: tensors[name] for name in self._forms}


def _placed(program: Program) -> Iterator[int]:
    """Yield the values of which as_strided takes a part at a place in their memory, which the trace has as a
    number.
    """
    for call in program.views.values():
        if call.target is AS_STRIDED and len(call.arguments) > 3 and call.arguments[3] is not None:
            yield from values_read(call)


def _same_names(given: Mapping[str, Any], expected: Mapping[str, Any], inputs: Inputs) -> None:
    """Raise OtherShapeError if other leaves are given than the plan's, which the module may well take, and
    MismatchError if one is of a kind of its own.
    """
    if missing := [name for name in expected if name not in given]:
        raise _missing(missing[0], inputs)
    if extra := [name for name in given if name not in expected]:
        raise OtherShapeError(f"input {extra[0]} is not among the inputs that the plan was made for")


def _other_form(name: str, there: Value, form: Value) -> str:
    return f"input {name} is {described(there)}; the plan is for {described(form)}"


def _missing(name: str, inputs: Inputs) -> MismatchError:
    """Return the error of a leaf that is missing, which says what there is instead."""
    tensors, others = leaves_in(inputs)
    there = {**others, **tensors}
    if name in there:
        found, kind = there[name], type(there[name]).__name__
        if not isinstance(found, Tensor | bool | int | float | complex | str | None):
            return MismatchError(f"input {name} is of type {kind}; the plan is for a tensor")
        return OtherShapeError(f"input {name} is of type {kind}; the plan is for another")
    if any(other.startswith(f"{name}.") for other in there):
        return MismatchError(f"input {name} is a list or another nest; the plan is for a tensor")
    return OtherShapeError(f"input {name} is missing")
