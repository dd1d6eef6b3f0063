"""`torch.autograd.graph.saved_tensors_hooks`, through which passes what autograd keeps for backward.

Most of them move activations elsewhere (`save_on_cpu`, TRL's and torchtune's activation offloading, files).
They change no value, and what a plan keeps need not pass through them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

from .torch_fakes import no_dispatch_modes, no_function_modes

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Any]]
"""pack_hook and unpack_hook."""

OFFLOADING = {
    "torch.autograd.graph",
    "trl.models.activation_offloading",
    "torchtune.training._activation_offloading",
}
"""Modules whose hooks keep activations in host memory. Some can't be tried outside of a backward."""

RECOMPUTING = {"torch.utils.checkpoint"}
"""Modules whose hooks run the forward pass once more: to try one would run the caller's code."""

PROBES = ((3,), torch.float32), ((1 << 14,), torch.float32), ((64, 64), torch.bfloat16), ((7,), torch.int64)
"""Shapes and dtypes for which other hooks are tried: small and large, as some leave small tensors out."""


def hooks_of_saved_tensors() -> Hooks | None:
    """Return the innermost `saved_tensors_hooks` that are active."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)  # pyright: ignore


def preserve_values(hooks: Hooks) -> bool:
    """Tell whether hooks give back what they are given, as those of OFFLOADING do. PROBES try all others.

    Hooks that decide by other things than shape and dtype are found when the iteration is compared with eager
    PyTorch's, which runs them.
    """
    pack, unpack = hooks
    module = getattr(pack, "__module__", "")
    return module in OFFLOADING or (module not in RECOMPUTING and _preserve_probes(pack, unpack))


def _preserve_probes(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Any]) -> bool:
    with no_dispatch_modes(), no_function_modes(), torch.no_grad():
        generator = torch.Generator().manual_seed(0)  # the global generator is the user's
        for shape, dtype in PROBES:
            probe = torch.randint(1 << 20, shape, generator=generator, device="cpu").to(dtype)
            try:
                back = unpack(pack(probe.clone()))
            except Exception:  # whatever it is, these hooks can't be left out
                return False
            if not isinstance(back, Tensor) or back.dtype != dtype or not torch.equal(back, probe):
                return False
    return True


@contextmanager
def preserving_hooks_off() -> Generator[None]:
    """Take off the `saved_tensors_hooks` around the context, but for those that change values.

    Some count: TRL's wait until everything that they have packed is unpacked by one backward.
    """
    around = list[Hooks]()
    try:
        while (hooks := hooks_of_saved_tensors()) is not None and preserve_values(hooks):
            around.append(hooks)
            torch._C._autograd._pop_saved_tensors_default_hooks()  # pyright: ignore
        yield
    finally:
        for hooks in reversed(around):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)  # pyright: ignore


@contextmanager
def hooks_refused(message: str) -> Generator[None]:
    """Refuse `saved_tensors_hooks` inside of the context, and those around it that change values.

    Raises RuntimeError with the message.
    """
    with preserving_hooks_off(), disable_saved_tensors_hooks(message):
        yield


@contextmanager
def preserving_hooks_left_out() -> Generator[None]:
    """Leave out `saved_tensors_hooks` that preserve values; others are entered as they are."""
    left_out = list[bool]()
    enter, leave = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__

    def entered(hooks: Any) -> None:
        left_out.append(preserve_values((hooks.pack_hook, hooks.unpack_hook)))
        if not left_out[-1]:
            enter(hooks)

    def left(hooks: Any, *error: object) -> None:
        if not left_out.pop():
            leave(hooks, *error)

    with (
        patch.object(saved_tensors_hooks, "__enter__", entered),
        patch.object(saved_tensors_hooks, "__exit__", left),
    ):
        yield
