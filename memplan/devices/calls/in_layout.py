"""In-place operations as operations with a separate result that has its input's layout in memory.

PyTorch's functional counterpart of an in-place operation may return another layout: `masked_fill` of a
transposed tensor is contiguous, a change in place of every third number of a block becomes a new block
without gaps. What reads it next may then take another path through its kernel, with other last bits: a sum
over the gradient of `torch.maximum`, a GRU's gates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...torch_support.torch_autograd import from_functional, to_functional
from ...torch_support.torch_fakes import no_dispatch_modes
from ...torch_support.torch_operators import SPLITS_THAT_DENY_IT, OpOverload, schema_of
from ...torch_support.torch_trees import tree_map
from .indices import picks

_UNSUITED = {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded}
"""Tags of operators that change a layout themselves, or whose draws are noted by their name."""

_COPY: Any = torch.ops.aten.copy_.default
"""Its functional form is scatters.py's."""

_library = torch.library.Library("memplan_in_layout", "DEF")  # held: its operators go with it


_CHANGED_BY: dict[Any, Any] = {}


def splits(target: Any) -> bool:
    """Tell whether the operator returns parts of its input, though its schema denies it.

    Since the schema denies it, a change of one part goes unseen in the others.
    """
    return target in SPLITS_THAT_DENY_IT


def changes_first(target: Any, arguments: tuple[Any, ...]) -> bool:
    """Tell whether the call changes its first argument, a tensor, in place, and nothing else."""
    if not isinstance(target, OpOverload) or not arguments or not isinstance(arguments[0], Tensor):
        return False
    changed = [
        argument.alias_info and argument.alias_info.is_write for argument in schema_of(target).arguments
    ]
    return bool(changed[0]) and not any(changed[1:])


def loses_layout(target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Tell whether PyTorch's functional counterpart of this call returns another layout than that of its
    first argument, a functional tensor, which the call changes in place.
    """
    first = arguments[0]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(first.shape, first.stride(), strict=True))
    if first.is_contiguous() or extent != first.numel():  # a view with gaps is written back into its block
        return False
    if _UNSUITED.intersection(target.tags) or target is _COPY or picks(target):
        return False

    def applied(leaf: Any) -> Any:
        return from_functional(leaf) if isinstance(leaf, Tensor) else leaf

    # What views have changed is applied here, in the trace. Out of it the result would be a tensor that the
    # program takes for a constant.
    values = tree_map(applied, (arguments, keywords))

    def copied(leaf: Any) -> Any:
        # Apart from the trace, and from the tensor itself: only the result's layout is wanted.
        return to_functional(leaf) if isinstance(leaf, Tensor) else leaf

    with no_dispatch_modes():
        positional, named = tree_map(copied, values)
        made = target(*positional, **named)
        return isinstance(made, Tensor) and from_functional(made).stride() != first.stride()


def in_layout(target: Any, arguments: Sequence[Any]) -> Any:
    """Return an operator that takes these arguments of `target`, changes nothing, and returns what `target`
    leaves in its first argument, in the same layout.
    """
    named = zip(schema_of(target).arguments, arguments, strict=False)
    return _defined(target, frozenset(one.name for one, value in named if isinstance(value, int | float)))


@cache
def _defined(target: Any, numbers: frozenset[str]) -> Any:
    """Define the operator. numbers: arguments that are numbers, though they may be tensors."""
    schema = schema_of(target)
    own = "_".join((schema.name.replace("::", "_"), schema.overload_name, *sorted(numbers))).lower()
    # Without the marks of what is changed: only a copy is.
    text = re.sub(r"\(\w+!\)", "", str(schema))
    for name in numbers:  # PyTorch takes a number for a tensor in its own operators alone
        text = text.replace(f"Tensor {name}", f"Scalar {name}")
    _library.define(own + text[text.index("(") :])

    def changed_copy(first: Tensor, *others: Any, **keywords: Any) -> Tensor:
        copy = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device=first.device)
        return target(copy.copy_(first), *others, **keywords)

    _library.impl(own, changed_copy, "CompositeExplicitAutograd")
    made = getattr(torch.ops.memplan_in_layout, own).default
    _CHANGED_BY[made] = target
    return made


def changed_by(operator: Any) -> Any:
    """Return the in-place operator that one of these stands for; None for any other operator."""
    return _CHANGED_BY.get(operator)
