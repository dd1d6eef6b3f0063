"""Calls in an iteration that give something else each time, without a tensor: refused while it is traced."""

from __future__ import annotations

import datetime
import glob
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable
from pathlib import PurePath
from types import FunctionType
from typing import Any

import numpy as np

from ...torch_support.raw import MISSING, class_entry, is_a, module_of, name_of, part_of
from ...torch_support.unsupported import TraceError
from .predicates import is_hashable
from .reader import users_place
from .reads import Node, spell

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
_HARMLESS = frozenset({"getstate", "setstate", "get_state", "set_state", "seed", "spawn", "jumped"})
_CLOCKS = frozenset(
    {
        *(
            time.time,
            time.time_ns,
            time.perf_counter,
            time.perf_counter_ns,
            time.monotonic,
            time.monotonic_ns,
        ),
        *(time.process_time, time.process_time_ns, time.thread_time, time.localtime, time.gmtime, time.ctime),
    }
)
_BY_CHANCE = frozenset({os.urandom, uuid.uuid1, uuid.uuid4, secrets.token_bytes, secrets.choice})
_MAKE_GENERATORS = frozenset(
    {random.Random, np.random.default_rng, np.random.RandomState, np.random.PCG64, np.random.SeedSequence}
)
_LOOK_AT_FILES = frozenset(
    {
        *(os.stat, os.lstat, os.listdir, os.scandir, os.access, os.getcwd, os.path.exists, os.path.isfile),
        *(os.path.isdir, os.path.getsize, os.path.getmtime, glob.glob, glob.iglob),
    }
)
_OF_PATHS = frozenset({"exists", "is_file", "is_dir", "stat", "iterdir", "glob", "rglob", "cwd"})
_DATES = (datetime.datetime, datetime.date)


def refuse_call(function: Any, outside: Callable[[Any], Node | None]) -> None:
    """Raise TraceError for clocks, files, and random numbers that are not PyTorch's.

    outside: the node of what was there before the iteration. A generator that is made and seeded in it gives
    the same numbers each time."""
    owner, name = part_of(function, "__self__"), str(part_of(function, "__name__"))
    if is_a(owner, _GENERATORS) and name not in _HARMLESS:
        if is_a(owner, random.SystemRandom) or outside(owner) is not None or _is_global(owner):
            whose = "NumPy's" if module_of(type(owner)).startswith("numpy") else "Python's"
            raise TraceError(drawing(f"{whose} random numbers", users_place()))
    # `in` a frozenset hashes, which a user's callable may refuse.
    elif (is_hashable(function) and function in _BY_CHANCE) or _is_of_secrets(function):
        raise TraceError(drawing("the system's random numbers", users_place()))
    elif (is_hashable(function) and function in _LOOK_AT_FILES) or (
        is_a(owner, PurePath) and name in _OF_PATHS
    ):
        raise TraceError(reading(f"looks at files ({name})", users_place()))
    elif (is_hashable(function) and function in _CLOCKS) or _is_now(owner, name):
        raise TraceError(
            f"{users_place()}reads the clock ({name}): a plan would keep the time of now. Measure "
            "around the step, or give the time as an input, a tensor"
        )


def refuse_unseeded(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raise TraceError for a new random generator that is not seeded by the code."""
    makes = is_hashable(function) and function in _MAKE_GENERATORS
    # Random(None) takes its seed from the system, as Random() does.
    if makes and all(each is None for each in (*arguments, *keywords.values())):
        whose = "Python's" if function is random.Random else "NumPy's"
        raise TraceError(drawing(f"{whose} random numbers", users_place()))


def drawing(whose: str, place: str) -> str:
    """Return the message for a draw of random numbers outside of PyTorch.

    whose: the numbers that are drawn.
    place: the line and the words before the verb.
    """
    return (
        f"{place}draws {whose}, which a plan would keep as they are now: draw with PyTorch (torch.rand, "
        "torch.randint), or outside of the model and give them as an input, a tensor"
    )


def refuse_iterator(node: Node | None, thing: Any) -> None:
    """Raise TraceError for an iterator that was there before the iteration and goes on in the next."""
    # A list starts anew at each loop; an iterator does not.
    goes_on = class_entry(type(thing), "__next__") is not MISSING and not is_a(thing, type)
    if node is not None and goes_on:
        raise TraceError(
            f"{users_place()}takes from {spell(node.path)}, a {name_of(type(thing))} "
            "that goes on in the next iteration: a plan would keep what it gives now. Take from it outside "
            "of the model, and give that as an input"
        )


def _is_of_secrets(function: Any) -> bool:
    return is_a(function, FunctionType) and function.__module__ in ("secrets", "uuid")


def _is_now(owner: Any, name: str) -> bool:
    return is_a(owner, type) and issubclass(owner, _DATES) and name in ("now", "utcnow", "today")


def _is_global(owner: Any) -> bool:
    # Module-level functions are methods of a hidden global generator.
    return any(owner is part_of(each, "__self__") for each in (random.random, np.random.rand))


def reading(what: str, place: str) -> str:
    return (
        f"{place}{what}, of which a plan would keep what is there now: do it outside of the model, once, and "
        "keep the result in a buffer, an attribute or an input"
    )
