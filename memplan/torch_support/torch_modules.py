"""Modules: their registers, hooks, structure and parts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FunctionType
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
    # Another dict: the module's own comes back untouched, whatever happens.
    module._modules = dict(list(every.items())[:number])
    try:
        yield
    finally:
        module._modules = every


MOVE_OF_TRAINER = "_move_model_to_device"
"""Method by which a Trainer of transformers moves its model."""


def model_of_configuration(kind: Any, configuration: Any, **options: Any) -> nn.Module:
    """Return a model of transformers, of its class and configuration, with its own first weights.

    options: dtype, attn_implementation.
    """
    return kind._from_config(configuration, **options)


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    return module._buffers


def buffers_not_saved(module: nn.Module) -> set[str]:
    """Return the names of the module's own buffers that `state_dict` leaves out."""
    return module._non_persistent_buffers_set


def module_structure(module: nn.Module) -> tuple[tuple[Any, ...], tuple[Any, ...], list[str]]:
    """Return the structure of a module: its submodules, what its hooks do, the names of its own tensors.

    Without hooks that only look on: transformers installs its own at a model's first call, and memplan after
    a sharded plan.
    """
    own: Any = module
    registers = (own._forward_pre_hooks, own._forward_hooks, own._backward_pre_hooks, own._backward_hooks)
    hooks: list[object] = []
    for hook in (hook for register in registers for hook in register.values()):
        twice = asks_for_gradients(hook) and hook_content(hook) in hooks
        if not (twice or looks_on(hook)):
            hooks.append(hook_content(hook))
    parts = (*module._modules, *map(id, module._modules.values()))
    own_tensors = (*module._parameters.items(), *module._buffers.items())
    return parts, tuple(hooks), [name for name, tensor in own_tensors if tensor is not None]


def hook_content(hook: Any) -> object:
    """Return what is equal for hooks that do the same: of a function its code and what that reads by itself,
    of another object its identity.

    Trainers remove hooks for a call and register new functions of the same code, such as transformers'
    `gradient_checkpointing_disable` and `gradient_checkpointing_enable`.
    """
    if type(hook) is not FunctionType:
        return id(hook)
    read = (*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values())
    try:
        read = (*read, *(cell.cell_contents for cell in hook.__closure__ or ()))
    except ValueError:  # a cell that is still empty
        return id(hook)
    values = (each if type(each) in (bool, int, float, str) else id(each) for each in read)
    return id(hook.__code__), id(hook.__globals__), *values


def _ask_for_gradients(_module: nn.Module, _input: Any, output: Tensor) -> None:
    output.requires_grad_(True)


def asks_for_gradients(hook: Any) -> bool:
    """Tell whether a hook lets its module's output require a gradient, and does nothing else.

    A second one changes nothing: transformers' `gradient_checkpointing_enable` adds one at each call.
    """

    def content(code: Any) -> tuple[object, ...]:
        return code.co_code, code.co_consts, code.co_names, code.co_argcount

    return type(hook) is FunctionType and content(hook.__code__) == content(_ask_for_gradients.__code__)


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
