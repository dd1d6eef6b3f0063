"""Names of `torch.distributed.fsdp.fully_shard` that torch does not promise to keep: its hooks and settings.

`FSDPModule` is public, and so are the DTensors that parameters are. The options of a unit, and the handles of
its hooks, are attributes of the state that `fully_shard.state(module)` returns. All were in torch 2.13.0.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""Attributes of a module that hold the hooks which FSDP2 registers."""

_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""Attributes that FSDP2 sets on each part of a module."""

_SETTINGS = {
    "reduce_grads": (True, "set_requires_gradient_sync"),
    "gradient_divide_factor": (None, "set_gradient_divide_factor"),
    "_all_reduce_hook": (None, "set_all_reduce_hook"),
}
"""Settings of a group of parameters that change what is computed: their default, and the call for them."""


@dataclass
class FsdpUnit:
    """The modules of one call of fully_shard."""

    modules: list[nn.Module]
    _state: Any
    _before: list[tuple[nn.Module, dict[str, Any], type]] = field(default_factory=list)

    @property
    def policy(self) -> MixedPrecisionPolicy:
        return self._state._mp_policy

    @property
    def changes(self) -> list[str]:
        """Names of the calls by which the user has changed how gradients are summed up."""
        return [
            call
            for group in self._groups
            for name, (default, call) in _SETTINGS.items()
            if getattr(group, name, default) != default
        ]

    @property
    def _groups(self) -> list[Any]:
        one = getattr(self._state, "_fsdp_param_group", None)  # as torch 2.10 has it
        return getattr(self._state, "_fsdp_param_groups", None) or ([] if one is None else [one])

    def reshard(self) -> None:
        """Let the modules have their shares as parameters, and free the full weights."""
        for module in self.modules:
            module.reshard()  # pyright: ignore[reportCallIssue]

    def unwrap(self) -> None:
        """Remove hooks, marks and class. The state stays, without effect, where fully_shard has put it."""
        managed = {part: None for module in self.modules for part in module.modules()}
        self._before = [(part, _attributes(part), type(part)) for part in managed]
        self._state._pre_forward_hook_handle.remove()
        self._state._post_forward_hook_handle.remove()
        for group in self._groups:
            for name in (
                "_module_to_pre_save_state_dict_hook_handle",
                "_module_to_pre_load_state_dict_hook_handle",
            ):
                for handle in getattr(group, name).values():
                    handle.remove()
            for each in group.fsdp_params:
                each._post_load_hook_handle.remove()
        for part in managed:
            for mark in _MARKS:
                part.__dict__.pop(mark, None)
        for module in self.modules:
            kind = type(module)
            # FSDP<class>, FSDPModule, class, as FSDPModule.__new__ reads it
            module.__class__ = kind.__mro__[2]

    def restore(self) -> None:
        """Undo `unwrap`."""
        for part, attributes, kind in self._before:
            for name, value in attributes.items():
                if name in _HOOKS:  # handles refer to the very table
                    part.__dict__[name].clear()
                    part.__dict__[name].update(value)
                else:
                    part.__dict__[name] = value
            part.__class__ = kind


def _attributes(part: nn.Module) -> dict[str, Any]:
    own = {name: OrderedDict(part.__dict__[name]) for name in _HOOKS if name in part.__dict__}
    return own | {mark: part.__dict__[mark] for mark in _MARKS if mark in part.__dict__}


def fsdp_units(module: nn.Module) -> list[FsdpUnit]:
    """Return the units that fully_shard has made in a module; none if it was not called."""
    found: dict[int, FsdpUnit] = {}
    for part, state in _states(module):
        found.setdefault(id(state), FsdpUnit([], state)).modules.append(part)
    return list(found.values())


def _states(module: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # who has wrapped a module has imported it
    if fsdp is None or not hasattr(fsdp, "FSDPModule"):
        return
    for part in module.modules():
        if isinstance(part, fsdp.FSDPModule):
            yield part, fsdp.fully_shard.state(part)
