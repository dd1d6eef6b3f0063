"""Optimizer states in a checkpoint: which are saved, how they are verified and replaced.

A state that wraps others (torchao's codes and scales) is saved as these, `0.exp_avg.1`, with a wrapper of the
same form without data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...graphs.errors import InputError, MismatchError
from ...model.accumulated import SUM, accumulated, note_accumulated
from ...torch_support.torch_tensors import parts_of_wrapper, wrapper_of, wraps_others
from ...updates.catalogue import tables_of
from .holding import Holding

Optimizer = torch.optim.Optimizer


def states_of(optimizer: Optimizer | None) -> tuple[dict[str, Tensor], Any]:
    """Return an optimizer's state tensors by name, and all else, with which tensors are on the CPU."""
    if optimizer is None:
        return {}, None
    packed, between = optimizer.state_dict(), accumulated(optimizer) is None
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    constant = tables_of(optimizer)
    tensors: dict[str, Tensor] = {}
    others: dict[int, dict[str, Any]] = {}
    wrapped: dict[int, dict[str, Tensor]] = {}
    for index, row in packed["state"].items():
        if any(isinstance(value, dict) for value in row.values()):
            row = optimizer.state[weights[index]]  # bitsandbytes packs states together
        # Between two updates the sums hold nothing.
        row = {name: value for name, value in row.items() if not (between and name == SUM)}
        row = {name: value for name, value in row.items() if name not in constant}
        tensors |= {f"{index}.{name}": value for name, value in _flat(row)}
        if wrappers := {name: _without_data(value) for name, value in row.items() if _wraps(value)}:
            wrapped[index] = wrappers
        others[index] = {name: value for name, value in row.items() if not isinstance(value, Tensor)}
    on_cpu = [name for name, tensor in tensors.items() if tensor.device.type == "cpu"]
    rows = {"groups": packed["param_groups"], "others": others, "on_cpu": on_cpu}
    return tensors, rows | ({"wrapped": wrapped} if wrapped else {})


def prepare_states(
    place: Path, optimizer: Optimizer | None, rows: Any, states: Mapping[str, Tensor], holding: Holding
) -> Callable[[], None]:
    """Verify that the states are this optimizer's, and return the function that sets them.

    States that the optimizer lacks are allocated. Nothing of the optimizer changes until the returned
    function is called. Raises InputError, MismatchError.
    """
    if (optimizer is None) != (rows is None):
        there, here = ("no optimizer", "one") if rows is None else ("an optimizer", "none")
        raise MismatchError(f"{place} was saved with {there}, and is loaded with {here}")
    if optimizer is None:
        return lambda: None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    _check_rows(place, optimizer, rows)
    by_index = _by_index(place, rows, states, len(parameters))
    _check_shapes(place, parameters, optimizer, by_index)
    on_cpu, wrapped = set(rows["on_cpu"]), _wrappers(place, rows, by_index)
    flat = [dict(_flat(optimizer.state.get(parameter, {}))) for parameter in parameters]
    new = {
        (index, state): holding.new_state(parameters[index], value, on_cpu=f"{index}.{state}" in on_cpu)
        for index, row in by_index.items()
        for state, value in row.items()
        if not _fits(flat[index].get(state), value)
    }

    def replace() -> None:
        for index, parameter in enumerate(parameters):
            if index not in by_index:
                optimizer.state.pop(parameter, None)
                continue
            row, wrappers = optimizer.state[parameter], wrapped.get(index, {})
            for state in row.keys() - by_index[index].keys() - wrappers.keys() - {SUM}:
                del row[state]
            row.update(rows["others"][index])
            for state, value in by_index[index].items():
                if (index, state) not in new:
                    holding.replace(flat[index][state], value)
                elif state.partition(".")[0] not in wrappers:
                    row[state] = new[index, state]
            for state, like in wrappers.items():
                parts = [f"{state}.{number}" for number, _part in enumerate(parts_of_wrapper(like))]
                if any((index, part) in new for part in parts):
                    row[state] = wrapper_of(
                        like, (new[index, x] if (index, x) in new else flat[index][x] for x in parts)
                    )
        note_accumulated(optimizer, None)
        for group, saved in zip(optimizer.param_groups, rows["groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})

    return replace


def _check_rows(place: Path, optimizer: Optimizer, rows: Any) -> None:
    """Check the form of all but the tensors: the rows and the optimizer's groups."""
    try:
        saved = [len(group["params"]) for group in rows["groups"]]
        whole = all(isinstance(row, dict) for row in rows["others"].values())
        whole = whole and all(isinstance(name, str) for name in rows["on_cpu"])
    except (AttributeError, KeyError, TypeError):
        whole, saved = False, []
    if not whole:
        raise InputError(f"{place}: its groups and states are not those of an optimizer")
    own = [len(group["params"]) for group in optimizer.param_groups]
    if saved != own:
        raise MismatchError(f"{place}: groups of {saved} parameters are saved, the optimizer has {own}")


def _by_index(
    place: Path, rows: Any, states: Mapping[str, Tensor], parameters: int
) -> dict[int, dict[str, Tensor]]:
    found: dict[int, dict[str, Tensor]] = {index: {} for index in rows["others"]}
    if wrong := [index for index in found if index not in range(parameters)]:
        raise InputError(f"{place}: states of parameter {wrong[0]!r}, the optimizer has {parameters}")
    for name, value in states.items():
        index, _, state = name.partition(".")
        # isdecimal alone is true for the digits of other scripts too.
        if not (index.isascii() and index.isdecimal() and len(index) < 20 and int(index) in found):
            raise InputError(f"{place}: the state {name!r} is of no parameter of the optimizer")
        found[int(index)][state] = value
    return found


def _check_shapes(
    place: Path,
    parameters: list[nn.Parameter],
    optimizer: Optimizer,
    by_index: Mapping[int, Mapping[str, Tensor]],
) -> None:
    """Check that the optimizer's own states, if any, are among those that are saved, in the same shapes."""
    common = {state for row in by_index.values() for state in row}
    for index, row in by_index.items():
        for state, own in _flat(optimizer.state.get(parameters[index], {})):
            if state == SUM:
                continue
            if state not in row and state in common:
                raise MismatchError(f"{place}: the optimizer has a state {index}.{state}, which is not saved")
            if state in row and own.shape != row[state].shape:
                shapes = f"{list(row[state].shape)}; the optimizer's has {list(own.shape)}"
                raise MismatchError(f"{place}: the state {index}.{state} is saved in the shape {shapes}")


def _wraps(value: Any) -> bool:
    return isinstance(value, Tensor) and wraps_others(value) and not isinstance(value, DTensor)


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a row by name, of one that wraps others these by their numbers."""
    for name, value in row.items():
        if _wraps(value):
            yield from ((f"{name}.{number}", part) for number, part in enumerate(parts_of_wrapper(value)))
        elif isinstance(value, Tensor):
            yield name, value


def _without_data(wrapper: Tensor) -> Tensor:
    parts = parts_of_wrapper(wrapper)
    return wrapper_of(wrapper, [torch.empty_like(part, device="meta") for part in parts])


def _wrappers(
    place: Path, rows: Any, by_index: Mapping[int, Mapping[str, Tensor]]
) -> dict[int, dict[str, Tensor]]:
    """Return the wrappers without data, by parameter and state. Raises InputError if a part is missing."""
    found: dict[int, dict[str, Tensor]] = rows.get("wrapped", {})
    for index, row in found.items():
        for name, _part in _flat(row):
            if name not in by_index.get(index, {}):
                raise InputError(f"{place}: of the state {index}.{name.partition('.')[0]} a part is missing")
    return found


def _fits(own: Any, value: Tensor) -> bool:
    return isinstance(own, Tensor) and (own.shape, own.dtype) == (value.shape, value.dtype)
