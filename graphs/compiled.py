"""Numba's compiler, typed. Compiled code is kept on disk by the date of the file a function stands in, so a
compiled function calls none of another file."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled when it is first called with arguments of new types."""
    return cast("Function", njit(cache=True)(function))
