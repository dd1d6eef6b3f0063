"""Calls that draw random numbers, and the state of the generators that they draw from."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ...torch_support.torch_operators import OpOverload, schema_of
from ..device.choice import device_of
from ..device.device import Device
from .fused import RANDOM

_OFF_AT_ZERO = {"dropout_p", "dropout", "p"}
_OFF_AT_FALSE = {"train", "training"}
_SEEN_DRAWING: set[Any] = set()
"""Operators that drew when they ran, though no tag says so: those of other packages mostly."""

_PROBABILITY_MEANS_DROPOUT = {"aten::native_dropout", "aten::_fused_dropout"}


def draws(target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Tell whether the call draws: its operator may (torch tags it so, or it was seen to), and no argument
    switches that off.
    """
    if not isinstance(target, OpOverload):
        return target in RANDOM
    if target in _SEEN_DRAWING:
        return True
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = _by_name(target, arguments, keywords)
    name = schema_of(target).name
    for argument, value in given.items():
        if argument in _OFF_AT_FALSE and value is False:
            return False
        # `p` of other operators, bernoulli for example, switches nothing off.
        is_dropout = argument != "p" or name in _PROBABILITY_MEANS_DROPOUT
        if argument in _OFF_AT_ZERO and is_dropout and value == 0:
            return False
    return True


def note_drawing(targets: Iterable[Any]) -> None:
    """Take operators for ones that draw: they ran, and a generator had another state afterwards."""
    _SEEN_DRAWING.update(targets)


Source = torch.device | Device | torch.Generator
"""A generator, or the device whose default one is meant."""


def save_generator(source: Source) -> bytes:
    """Return the generator's state, as bytes: it must not count as a tensor's storage."""
    own = isinstance(source, torch.Generator)
    state = source.get_state() if own else device_of(source).generator_state()
    return state.numpy().tobytes()


def restore_generator(source: Source, state: bytes) -> None:
    # `frombuffer` warns of memory that can't be written, as that of bytes.
    tensor = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    if isinstance(source, torch.Generator):
        source.set_state(tensor)
    else:
        device_of(source).set_generator_state(tensor)


@contextmanager
def generators_kept(sources: Iterable[Source]) -> Generator[None]:
    """Restore the generators' states when the context ends."""
    states = [(source, save_generator(source)) for source in sources]
    try:
        yield
    finally:
        for source, state in states:
            restore_generator(source, state)


def generator_place(target: Any) -> int | None:
    """Return which of an operator's arguments is the generator to draw from; None for one that takes none."""
    if not isinstance(target, OpOverload):
        return None
    names = [argument.name for argument in schema_of(target).arguments]
    return names.index("generator") if "generator" in names else None


def _by_name(target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    schema = schema_of(target).arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    named = {argument.name: value for argument, value in zip(schema, arguments, strict=False)}
    return {**defaults, **named, **keywords}
