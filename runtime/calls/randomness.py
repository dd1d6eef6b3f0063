"""Which calls draw random numbers, and the state of the generators they draw them from."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..device.choice import device_of
from ..device.device import Device
from ..torch_internals import OpOverload, schema_of
from .fused import RANDOM

_OFF_AT_ZERO = {"dropout_p", "dropout", "p"}
_OFF_AT_FALSE = {"train", "training"}
_PROBABILITY_MEANS_DROPOUT = {"aten::native_dropout", "aten::_fused_dropout"}


def draws(target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Whether the call draws: its operator may (torch tags it so), and no argument switches that off."""
    if not isinstance(target, OpOverload):
        return target in RANDOM
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = _by_name(target, arguments, keywords)
    name = schema_of(target).name
    for argument, value in given.items():
        if argument in _OFF_AT_FALSE and value is False:
            return False
        is_dropout = argument != "p" or name in _PROBABILITY_MEANS_DROPOUT
        if argument in _OFF_AT_ZERO and is_dropout and value == 0:
            return False
    return True


def save_generator(device: torch.device | Device) -> bytes:
    """The state of the device's default generator. As bytes: it must not count as a tensor's storage."""
    return device_of(device).generator_state().numpy().tobytes()


def restore_generator(device: torch.device | Device, state: bytes) -> None:
    device_of(device).set_generator_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _by_name(target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    schema = schema_of(target).arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    named = {argument.name: value for argument, value in zip(schema, arguments, strict=False)}
    return {**defaults, **named, **keywords}
