"""Names of `torch.distributed.fsdp.fully_shard` that torch does not promise to keep: its hooks and settings.

`FSDPModule` is public, and so are the DTensors that parameters are. The options of a unit, and the handles of
its hooks, are attributes of the state that `fully_shard.state(module)` returns. All were in torch 2.13.0.

A policy may cast what modules take and return. Hooks that do only this take the place of FSDP2's, so that
they run when its would among the user's own.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..graphs.errors import MismatchError

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

_SYNC = "set_requires_gradient_sync"
"""Name of the method by which a loop has FSDP2 add gradients up before it scatters them."""

_SETTINGS = {
    "reduce_grads": (True, _SYNC),
    "all_reduce_grads": (True, "set_requires_all_reduce"),
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
        """Remove marks, class and hooks but for casts of what modules take and return.

        The state stays, without effect, where fully_shard has put it.
        """
        managed = {part: None for module in self.modules for part in module.modules()}
        self._before = [(part, _attributes(part), type(part)) for part in managed]
        self._unhook()
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
            module.__dict__[_SYNC] = _refuse_no_sync

    def _unhook(self) -> None:
        state, policy = self._state, self.policy
        taken = policy.param_dtype if policy.cast_forward_inputs else None
        # Several modules of one call have one handle, of all their hooks.
        handles = {id(one): one for one in (state._pre_forward_hook_handle, state._post_forward_hook_handle)}
        for handle in (part for one in handles.values() for part in getattr(one, "handles", (one,))):
            hooks = handle.hooks_dict_ref()
            before = any(hooks is module._forward_pre_hooks for module in self.modules)
            dtype = taken if before else policy.output_dtype
            if dtype is None:
                handle.remove()
            else:
                hooks[handle.id] = partial(_cast_inputs if before else _cast_outputs, dtype)

    def restore(self) -> None:
        """Undo `unwrap`."""
        for module in self.modules:
            module.__dict__.pop(_SYNC, None)
        for part, attributes, kind in self._before:
            for name, value in attributes.items():
                if name in _HOOKS:  # handles refer to the very table
                    part.__dict__[name].clear()
                    part.__dict__[name].update(value)
                else:
                    part.__dict__[name] = value
            part.__class__ = kind


def _refuse_no_sync(requires_gradient_sync: bool, *, recurse: bool = True) -> None:
    """Replace the method of a module that a plan has taken over. Raises MismatchError."""
    if not requires_gradient_sync:
        raise MismatchError(
            "the plan scatters the gradients of each batch, and counts the batches of an update itself: call "
            "the step without accelerator.accumulate, no_sync and set_requires_gradient_sync"
        )


def _cast_inputs(dtype: torch.dtype, _module: nn.Module, *inputs: Any) -> Any:
    """Cast positional arguments and keywords."""
    return _cast(dtype, inputs)


def _cast_outputs(dtype: torch.dtype, _module: nn.Module, _arguments: Any, output: Any) -> Any:
    return _cast(dtype, output)


def _cast(dtype: torch.dtype, nest: Any) -> Any:
    """Cast the floating-point tensors in a nest, as FSDP2 does: outputs that are dataclasses too."""
    from torch.distributed.utils import _apply_to_tensors

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return _apply_to_tensors(cast, nest)


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
