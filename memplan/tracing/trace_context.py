"""Context of a trace: answers to what models ask in order to know whether they are traced."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..devices.calls.cumulative_norm import cumulative
from ..guards.cached_results import caches_forgotten
from ..guards.captured import users_line
from ..torch_support.torch_autograd import checkpoints_replaced
from ..torch_support.torch_fakes import (
    FAKE_TENSOR_LOGGER,
    fakes_retyped,
    say_compiling,
    says_compiling,
    uncompiled,
)
from ..torch_support.torch_modules import distributions_not_validated, norms_replaced
from ..torch_support.torch_saved_hooks import preserving_hooks_left_out
from ..torch_support.unsupported import TraceError

T = TypeVar("T")


@contextmanager
def compiling(flag: bool = True) -> Generator[None]:
    """Let `torch.compiler.is_compiling()` answer `flag`: some models then leave out what can't be traced."""
    before = says_compiling()
    say_compiling(flag)
    try:
        yield
    finally:
        say_compiling(before)


@contextmanager
def not_called_fake() -> Generator[None]:
    """Make transformers believe that no tensor is fake: its models leave their eager path if one is."""
    module: Any = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(module, "is_fake_tensor"):
        yield
        return
    before = module.is_fake_tensor
    module.is_fake_tensor = _never
    try:
        yield
    finally:
        module.is_fake_tensor = before


def ordinary_tensors() -> AbstractContextManager[Any]:
    """Return a context in which `as_subclass` stays within the trace's own tensors."""
    return fakes_retyped(_retyped)


def _retyped(tensor: Tensor, cls: type[Tensor]) -> Tensor:
    if cls is not Tensor:
        raise TraceError(
            f"{users_line()}makes a {cls.__name__} of a tensor, whose own methods a trace does not follow: "
            "compute with torch.Tensor in forward and loss"
        )
    # Another object in the same memory, as `as_subclass` gives.
    return tensor.view_as(tensor)


def without_checkpoints() -> AbstractContextManager[None]:
    """Return a context in which `torch.utils.checkpoint` only runs its function: recomputation is the
    schedule's to decide.
    """
    return checkpoints_replaced(_run_by_reentrant_checkpoint, _nothing_around)


def cumulative_norms() -> AbstractContextManager[Any]:
    """Return a context in which BatchNorms with `momentum=None` do not convert their count of batches to a
    number.
    """
    return norms_replaced(cumulative)


def without_validation() -> AbstractContextManager[None]:
    """Return a context in which `torch.distributions` do not look at the values of their arguments.

    Whether these are valid does not change what is computed.
    """
    return distributions_not_validated()


def _run_by_reentrant_checkpoint(run: Callable[..., T], _preserve_rng_state: bool, *arguments: Any) -> T:
    """Run the function without a gradient if no argument needs one, as such a checkpoint does."""
    needed = any(isinstance(each, Tensor) and each.requires_grad for each in arguments)
    with torch.set_grad_enabled(needed and torch.is_grad_enabled()):
        return run(*arguments)


def _nothing_around(*_arguments: Any, **_keywords: Any) -> Generator[None]:
    yield


@contextmanager
def users_code(*, as_compiled: bool) -> Generator[None]:
    """Run the code of a model as a trace does.

    as_compiled: let `torch.compiler.is_compiling()` be true; else no tensor is called fake.
    """
    with (
        compiling() if as_compiled else not_called_fake(),
        silent(),
        without_checkpoints(),
        preserving_hooks_left_out(),
        without_validation(),
        cumulative_norms(),
        ordinary_tensors(),
        uncompiled(),
        caches_forgotten(),
    ):
        yield


@contextmanager
def silent() -> Generator[None]:
    """Silence the tracer's log of an operation that it can't trace; the error that follows says it in one
    line.
    """
    logger = logging.getLogger(FAKE_TENSOR_LOGGER)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _never(_tensor: object) -> bool:
    return False
