"""Modules: their registers, hooks, structure and parts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
"""Module of torch's wrappers of modules that save activations in another way."""

MODULE_REGISTERS = ("_parameters", "_buffers", "_modules")
"""The dicts of a module, by the names of its attributes."""

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

RUNS_IN_FORWARD = ("_modules", *FORWARD_HOOKS)
"""Those whose code runs when a module is called."""

HOOK_REGISTERS = (*FORWARD_HOOKS, "_backward_hooks", "_backward_pre_hooks")

BATCH_NORM_MODULES: Any = nn.modules.batchnorm._BatchNorm
"""Class of all batch norms, of any dimensions and over several processes."""


def is_made(module: nn.Module) -> bool:
    """Tell whether `nn.Module.__init__` has run."""
    return all(name in vars(module) for name in RUNS_IN_FORWARD)


def norms_replaced(forward: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> Any:
    """Return a context in which BatchNorms have the forward that `forward` makes of theirs."""
    norm: Any = nn.modules.batchnorm._BatchNorm
    return patch.object(norm, "forward", forward(norm.forward))


def check_input_of_norm(norm: nn.Module, x: Tensor) -> None:
    """Raise ValueError if the input has another number of dimensions than the BatchNorm takes, as its
    forward does.
    """
    own: Any = norm
    own._check_input_dim(x)


@contextmanager
def distributions_not_validated() -> Generator[None]:
    """Switch off the validation of distributions, as `set_default_validate_args(False)` does, and restore
    it.
    """
    with patch.object(torch.distributions.Distribution, "_validate_args", False):
        yield


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own parameters, to be replaced in place, past its `__setattr__`."""
    return module._parameters


@contextmanager
def with_first_parts(module: nn.Module, number: int) -> Generator[None]:
    """Leave only a module's first parts in it meanwhile."""
    every = module._modules
    module._modules = dict(list(every.items())[:number])
    try:
        yield
    finally:
        module._modules = every


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    return module._buffers


def buffers_not_saved(module: nn.Module) -> set[str]:
    """Return the names of the module's own buffers that `state_dict` leaves out."""
    return module._non_persistent_buffers_set


def module_structure(module: nn.Module) -> tuple[tuple[Any, ...], tuple[int, ...], list[str]]:
    """Return the structure of a module: its submodules, the identities of its hooks, the names of its own
    tensors.

    Without hooks that only look on: transformers installs its own at a model's first call, and memplan after
    a sharded plan.
    """
    own: Any = module
    registers = (own._forward_pre_hooks, own._forward_hooks, own._backward_pre_hooks, own._backward_hooks)
    hooks = [id(hook) for register in registers for hook in register.values() if not looks_on(hook)]
    parts = (*module._modules, *map(id, module._modules.values()))
    own_tensors = (*module._parameters.items(), *module._buffers.items())
    return parts, tuple(hooks), [name for name, tensor in own_tensors if tensor is not None]


def looks_on(hook: Any) -> bool:
    """Tell whether a module's hook is known to change nothing that the module computes."""
    home = getattr(hook, "__module__", None) or ""
    return home == "transformers.utils.output_capturing" or home.endswith(".devices.sharded.direct_calls")


def hooks_of_all_modules() -> list[int]:
    """Return the identities of hooks that `register_module_forward_hook` and the like have registered."""
    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    registers = (getattr(torch.nn.modules.module, f"_global_{kind}_hooks") for kind in kinds)
    return [id(hook) for register in registers for hook in register.values()]


def applied(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Apply a change to all tensors of the module, as `Module.to`, `half` and `cuda` do."""
    module._apply(change)


def applied_by(apply: Callable[..., nn.Module]) -> Any:
    """Return a context in which `apply` replaces `_apply` in all modules that do not override it."""
    return patch.object(nn.Module, "_apply", apply)


def attention_of(model: Any) -> str | None:
    """Return the attention that a model of transformers computes with: 'eager', 'sdpa'."""
    return getattr(model.config, "_attn_implementation", None)
