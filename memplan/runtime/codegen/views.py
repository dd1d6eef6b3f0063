"""Views in generated code: a chain of them as one call, none for a view that is its base.

    v9 = view(v7, (1, 8, 2, 4))       v10 = as_strided(v7, (1, 2, 8, 4), (64, 4, 8, 1))
    v10 = transpose(v9, 1, 2)

The chain is run on a tensor without memory that has the base's layout: by PyTorch's own code, so the one call
makes what the chain makes. A view with another dtype, or of the conjugate or the negative, is not folded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...program.program import Call, Program, Ref, values_read
from ...torch_support.torch_fakes import no_dispatch_modes, no_function_modes
from ...torch_support.torch_tensors import memory_of

AS_STRIDED: Any = torch.ops.aten.as_strided.default


class Same(NamedTuple):
    """A view that is its base. base: the value."""

    base: int


class _Link(NamedTuple):
    """One view of a chain: its call, and which of the results it is."""

    call: Call
    result: int


class Views:
    """How generated code makes the views of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._returned = frozenset(program.returned)
        # The caller's tensors may begin anywhere in their memory.
        self._of_caller = {program.values[value].storage for value in program.residents}

    def make(self, value: int, held: Collection[int]) -> Call | Same:
        """Return how to make a view out of one that has a variable, or out of one that is to be made first.

        held: values in its storage that have a variable.
        """
        chain, bases = self._chain(value, held)
        for length in range(len(chain), 0, -1):
            base = bases[length - 1]
            found = self._folded(chain[:length][::-1], base, value)
            if isinstance(found, Same) or (found is not None and length > 1):
                return found
        return self._program.views[value]

    def _chain(self, value: int, held: Collection[int]) -> tuple[list[_Link], list[int]]:
        """Return the views that lead to a value, the last first, and what each is a view of."""
        chain: list[_Link] = []
        bases: list[int] = []
        while value not in held and value in self._program.views:
            call = self._program.views[value]
            (base,) = values_read(call)
            chain.append(_Link(call, call.outputs.index(value)))
            bases.append(base)
            value = base
        return chain, bases

    def _folded(self, chain: Sequence[_Link], base: int, value: int) -> Call | Same | None:
        """Return the chain of views from `base` to `value` as one call; None if that is not possible."""
        form = self._program.values[base]
        try:
            with no_dispatch_modes(), no_function_modes():
                start = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")
                made = start
                for link in chain:
                    made = _run(link, made)
                same_memory = memory_of(made) == memory_of(start)
        except Exception:  # a view that only a device's kernel makes
            return None
        if not same_memory or made.dtype != form.dtype or made.is_conj() or made.is_neg():
            return None
        shape, strides, offset = tuple(made.shape), made.stride(), int(made.storage_offset())
        if (shape, strides, offset) == (form.shape, form.strides, 0) and value not in self._returned:
            return Same(base)
        if not offset:  # as_strided begins where its argument does
            return Call(AS_STRIDED, (Ref(base), shape, strides), {}, (value,), several=False)
        if form.storage in self._of_caller:
            return None
        return Call(
            AS_STRIDED, (Ref(base), shape, strides, form.offset + offset), {}, (value,), several=False
        )


def _run(link: _Link, base: Tensor) -> Tensor:
    """Run one view of a chain."""
    call = link.call
    keywords = {name: _filled(argument, base) for name, argument in call.keywords.items()}
    made = call.target(*(_filled(argument, base) for argument in call.arguments), **keywords)
    return made[link.result] if call.several else made


def _filled(argument: Any, base: Tensor) -> Any:
    return base if isinstance(argument, Ref) else argument
