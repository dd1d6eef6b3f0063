"""In-place operations as operations with a separate result that has its input's layout in memory.

Without that, a change in place of every third number of a block becomes a new block without gaps, and what
reads it next may take another path through its kernel, with other last bits: a GRU's gates are such.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..torch_internals import SPLITS_THAT_DENY_IT, schema_of

_library = torch.library.Library("memplan_in_layout", "DEF")


def splits(target: Any) -> bool:
    """Tell whether the operator returns parts of its input, though its schema denies it.

    Since the schema denies it, a change of one part goes unseen in the others.
    """
    return target in SPLITS_THAT_DENY_IT


def changes_first(target: Any, arguments: tuple[Any, ...]) -> bool:
    """Tell whether the call changes its first argument in place, and nothing else."""
    changed = [
        argument.alias_info and argument.alias_info.is_write for argument in schema_of(target).arguments
    ]
    return bool(arguments) and bool(changed and changed[0]) and not any(changed[1:])


@cache
def in_layout(target: Any) -> Any:
    """Return an operator that takes the arguments of `target`, changes nothing, and returns what `target`
    leaves in its first argument, in the same layout.
    """
    name, overload = schema_of(target).name.partition("::")[2], schema_of(target).overload_name
    own = f"{name}{overload}".lower()
    text = re.sub(r"\(\w+!\)", "", str(schema_of(target)))
    _library.define(own + text[text.index("(") :])

    def changed_copy(first: Tensor, *others: Any, **keywords: Any) -> Tensor:
        copy = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device=first.device)
        return target(copy.copy_(first), *others, **keywords)

    _library.impl(own, changed_copy, "CompositeExplicitAutograd")
    return getattr(torch.ops.memplan_in_layout, own).default
