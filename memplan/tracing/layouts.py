"""The forms of tensors: what the trace says of a call's results, and what its kernel really returns.

The trace asks PyTorch's fake kernels, which are not always right: an LSTM's workspace and cuDNN's reserve
have no size there, batch norms other strides after a transpose, norms under autocast another dtype, views
other strides in dimensions of size 1. What comes after follows from that: whether a `reshape` copies, how a
moved tensor is put together afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..devices.absent_gpu.devices import is_absent_gpu, keep_on_absent_gpu
from ..devices.calls.batch_norm import planned_target
from ..devices.calls.fake_kernels import CTC
from ..devices.calls.grouped import grouped_product, is_grouped
from ..devices.calls.scatters import SCATTERS
from ..devices.measuring.synthetic_inputs import elements_spanned
from ..program.program import Call, Program, Ref
from ..torch_support.in_place_collectives import collective_error
from ..torch_support.torch_collectives import communicates_otherwise, starts_collective
from ..torch_support.torch_fakes import FakeTensorMode, launches_nothing
from ..torch_support.torch_operators import GROUPED_PRODUCT, RESHAPING_VIEWS, TO_COPY
from ..torch_support.torch_tensors import memory_of
from ..torch_support.torch_trees import tree_map
from ..torch_support.unsupported import users_line

aten: Any = torch.ops.aten


class Form(NamedTuple):
    """Form of a call's result.

    memory: index of the first of the call's results that is in the same memory.
    strides, offset: in elements.
    """

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


Forms = Mapping[Hashable, tuple[Form | None, ...]]
"""Per distinct call, see `call_key`, the real forms of its results; None for one that is not a tensor."""


def forms_of(results: Sequence[Any]) -> tuple[Form | None, ...]:
    """Return the forms of a call's results, real or fake; None for one that is not a tensor."""
    memories = [memory_of(result) if isinstance(result, Tensor) else -1 for result in results]

    def form(tensor: Any, memory: int) -> Form | None:
        if not isinstance(tensor, Tensor):
            return None
        layout = (tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        return Form(memories.index(memory), *layout, tensor.dtype, tensor.device)

    return tuple(map(form, results, memories))


def traced_forms(program: Program, call: Call) -> tuple[Form | None, ...]:
    """Return the forms of a call's results as the program has them; None for a result that nobody reads."""
    values = [None if output is None else program.values[output] for output in call.outputs]
    storages = [None if value is None else value.storage for value in values]
    return tuple(value and Form(storages.index(value.storage), *value[1:]) for value in values)


def of_those_read(forms: Sequence[Form | None], outputs: Sequence[int | None]) -> tuple[Form | None, ...]:
    """Return the forms without those of results that nobody reads."""
    read = [None if output is None else form for form, output in zip(forms, outputs, strict=False)]
    memories = [None if form is None else form.memory for form in read]
    return tuple(form and form._replace(memory=memories.index(form.memory)) for form in read)


def results_of(result: Any) -> Sequence[Any]:
    """Return one result or several as a sequence."""
    return result if isinstance(result, tuple | list) else (result,)


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────


def call_key(program: Program, call: Call) -> Hashable:
    """Return a key that is equal for calls whose results have equal forms: target, input layouts, other
    arguments.
    """

    def layout(argument: Any) -> Hashable:
        if isinstance(argument, Ref):
            value = program.values[argument.value]
            return value.shape, value.strides, value.dtype, value.device
        return None

    return _key(call.target, call.arguments, call.keywords, layout)


def _traced_key(target: Any, arguments: Any, keywords: Any) -> Hashable:
    """Return the same key for a call while tracing."""

    def layout(argument: Any) -> Hashable:
        if isinstance(argument, Tensor):
            return tuple(argument.shape), tuple(argument.stride()), argument.dtype, argument.device
        return None

    return _key(target, arguments, keywords, layout)


def _key(target: Any, arguments: Any, keywords: Any, layout: Callable[[Any], Hashable]) -> Hashable:
    def describe(argument: Any) -> Hashable:
        if (form := layout(argument)) is not None:
            return form
        if isinstance(argument, tuple | list):
            return tuple(map(describe, argument))
        return repr(None if isinstance(argument, torch.Generator) else argument)  # traced as the default one

    return target, describe(arguments), tuple((name, describe(keywords[name])) for name in sorted(keywords))


# ── tracing ─────────────────────────────────────────────────────────────────────────────────────────


@launches_nothing
class TrueFakes(FakeTensorMode):
    """Fake kernels, corrected if the real ones are known to return another form."""

    def __init__(self, forms: Forms) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._forms = forms
        self._targets = {key[0] for key in forms}  # pyright: ignore[reportIndexIssue]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_grouped(func, args) and func is GROUPED_PRODUCT and not kwargs:
            with self:
                return grouped_product(*args)
        if communicates_otherwise(func):
            raise collective_error(users_line(), func)
        if func in SCATTERS:
            return self._call(aten.clone.default, args[0])
        if func in CTC:
            with self:
                made = CTC[func](*args, **(kwargs or {}))
        else:
            made = super().__torch_dispatch__(func, types, args, kwargs)
        if func is TO_COPY and is_absent_gpu():
            keep_on_absent_gpu(made, (kwargs or {}).get("device"))
        if starts_collective(func):
            return tree_map(self._contiguous, made)
        if func in RESHAPING_VIEWS:
            return self._viewed(func, made, *args)
        if func is aten.native_batch_norm_backward.default:
            made: Any = _requested(made, (kwargs or {}).get("output_mask", args[-1]))
        target = planned_target(func, args)
        if target not in self._targets:
            return made
        forms = self._forms.get(_traced_key(target, args, kwargs or {}))
        # Never run for real: PyTorch's fake kernel is believed.
        if forms is None:
            return made
        fakes = results_of(made)
        forms = forms[: len(fakes)]
        if forms_of(fakes) == forms:
            return made
        corrected = self._fakes(forms)
        return type(made)(corrected) if isinstance(made, tuple | list) else corrected[0]

    def _contiguous(self, made: Any) -> Any:
        """Return a collective's result as kernels lay it out; fakes keep the strides of what is sent."""
        if made.is_contiguous():
            return made
        return self._call(aten.clone.default, made, memory_format=torch.contiguous_format)

    def _viewed(self, func: Any, made: Any, tensor: Tensor, shape: Sequence[int]) -> Any:
        """Return `made` with the kernel's strides.

        Fakes have others in dimensions of size 1, and by these too convolutions choose the layout of their
        results.
        """
        meta = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
        strides = func(meta, shape).stride()
        if made.stride() == strides:
            return made
        return self._call(aten.as_strided.default, tensor, list(made.shape), list(strides))

    def _fakes(self, forms: Sequence[Form | None]) -> list[Any]:
        """Create fake tensors of these forms, in separate memory."""
        memories: dict[int, Any] = {}
        made: list[Any] = []
        for form in forms:
            if form is not None and form.memory not in memories:
                size = max(map(bytes_of, (f for f in forms if f is not None and f.memory == form.memory)))
                kinds = {"dtype": torch.uint8, "device": form.device}
                memories[form.memory] = self._call(aten.empty.memory_format, [size], **kinds)
            made.append(None if form is None else self._placed(memories[form.memory], form))
        return made

    def _placed(self, memory: Tensor, form: Form) -> Tensor:
        empty = self._call(aten.empty.memory_format, [0], dtype=form.dtype, device=form.device)
        layout = (form.offset, list(form.shape), list(form.strides))
        return self._call(aten.set_.source_Storage_storage_offset, empty, memory.untyped_storage(), *layout)

    def _call(self, target: Any, *arguments: Any, **keywords: Any) -> Any:
        tensors = tuple(type(argument) for argument in arguments if isinstance(argument, Tensor))
        return super().__torch_dispatch__(target, tensors, arguments, keywords)


def _requested(gradients: Sequence[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    """Return the gradients that a backward was asked for, None for the others.

    Fakes compute those too, kernels don't (that of the input of a first BatchNorm).
    """
    return tuple(made if wanted else None for made, wanted in zip(gradients, mask, strict=True))


def bytes_of(form: Form) -> int:
    """Return the bytes from the start of the tensor's memory to its end."""
    return (form.offset + elements_spanned(form)) * form.dtype.itemsize
