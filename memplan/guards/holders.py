"""Simple attributes of the holders of attached tensors: block sizes, kinds, shapes.

A holder is a parameter with tensors among its attributes, or an object between the two (a quantised weight's
`quant_state`). The trace has read its numbers and names, so they must stay; the tensors may be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import is_
from typing import Any

import torch

from ..model.attached import Place, attributes
from ..torch_support.raw import is_one_of, is_simple
from ..torch_support.reach import spelled

_FIXED = (torch.Size, torch.dtype, torch.device)


class Holders:
    """The simple attributes of holders, compared with those of the plan.

    places: of the attached tensors, by name.
    plan: the attributes when it was made, by the holder's name.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places: dict[str, Place] = {}
        for name, place in places.items():
            # Of `0.weight.quant_state.absmax` these are `0.weight` and `0.weight.quant_state`.
            parameter = name.removesuffix(f".{spelled(place.path)}")
            for depth in range(len(place.path)):
                path = place.path[:depth]
                self._places[f"{parameter}.{spelled(path)}".rstrip(".")] = place._replace(path=path)
        self.plan = self._read()
        self._note()

    def difference(self) -> str | None:
        """Describe the first simple attribute that is another than the plan's."""
        found = self._objects()
        # Held since then, so no other object can have the address of one.
        if len(found) == len(self._known) and all(map(is_, found, self._known)):
            return None
        now = self._read()
        for name, plan in self.plan.items():
            for key in (*plan, *now[name]):
                then, there = (row.get(key, "not there") for row in (plan, now[name]))
                if then != there or type(then) is not type(there):
                    return f"{name}.{key} is {there!r}; the plan is for {then!r}"
        self._note()
        return None

    def _read(self) -> dict[str, dict[str, Any]]:
        return {name: _simple(attributes(place.get())) for name, place in self._places.items()}

    def _note(self) -> None:
        self._known = self._objects()

    def _objects(self) -> list[Any]:
        """Return holders and the values of their attributes: if all are the same, nothing has changed."""
        found = [place.get() for place in self._places.values()]
        return [*found, *chain.from_iterable(attributes(each).values() for each in found)]


def _simple(own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in own.items() if is_simple(value) or is_one_of(type(value), _FIXED)}
