"""Several optimizers as one, each of other parameters: Muon for matrices with AdamW for the rest.

    step = memplan.optimize(model, budget="12GB", optimizer=[muon, adamw])

Groups and states stay those of the members, so that their schedules, `state_dict()` and `load_state_dict()`
are as usual. A step is a step of each, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graphs.errors import InputError


class SeveralOptimizers(torch.optim.Optimizer):
    """Optimizers that step one after the other.

    members: the optimizers, in order.
    """

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        """Join them. Raises InputError for a parameter that two of them have."""
        self.members: list[torch.optim.Optimizer] = []
        # What it is given is checked and dropped: groups are the members'.
        weights = [each for one in members for group in one.param_groups for each in group["params"]]
        super().__init__(dict.fromkeys(weights), {})
        of: dict[int, torch.optim.Optimizer] = {}
        for member in members:
            for weight in (each for group in member.param_groups for each in group["params"]):
                if of.setdefault(id(weight), member) is not member:
                    raise InputError(
                        f"optimizer=: {type(of[id(weight)]).__name__} and {type(member).__name__} have a "
                        "parameter in common: give each parameter to one of them"
                    )
        self.members = list(members)
        self._states = _States(self.members)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for member in self.members for group in member.param_groups]

    @param_groups.setter
    def param_groups(self, _groups: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Nothing: the members have their own, which their `load_state_dict` replaces."""

    @property
    def state(self) -> MutableMapping[Tensor, dict[str, Any]]:
        return self._states

    @state.setter
    def state(self, _state: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Nothing, as for groups."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if closure is not None:
            raise InputError("several optimizers step without a closure")
        for member in self.members:
            member.step()

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        return _Handles([member.register_step_pre_hook(hook) for member in self.members])


class _Handles:
    """Handles of hooks, removed together."""

    def __init__(self, handles: Iterable[Any]) -> None:
        self._handles = list(handles)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class _States(MutableMapping[Tensor, dict[str, Any]]):
    """The states of all members; one that is not there is made by the member that has the parameter."""

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        self._members = members
        self._owners: dict[int, torch.optim.Optimizer] = {}

    def __getitem__(self, weight: Tensor) -> dict[str, Any]:
        return self._of(weight)[weight]

    def __setitem__(self, weight: Tensor, value: dict[str, Any]) -> None:
        self._of(weight)[weight] = value

    def __delitem__(self, weight: Tensor) -> None:
        del self._of(weight)[weight]

    def __iter__(self) -> Iterator[Tensor]:
        return (weight for member in self._members for weight in list(member.state))

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)

    def __contains__(self, weight: object) -> bool:
        # Not by __getitem__, which makes what is not there.
        return any(weight in member.state for member in self._members)

    def get(self, weight: Tensor, default: Any = None) -> Any:
        if weight not in self:
            return default
        return self[weight]

    def pop(self, weight: Tensor, *default: Any) -> Any:
        return self._of(weight).pop(weight, *default)

    def _of(self, weight: Tensor) -> MutableMapping[Tensor, dict[str, Any]]:
        if id(weight) not in self._owners:
            for member in self._members:
                self._owners |= {id(x): member for group in member.param_groups for x in group["params"]}
        return self._owners[id(weight)].state


def members_of(optimizer: torch.optim.Optimizer) -> Sequence[torch.optim.Optimizer]:
    """Return the optimizers of which this one consists: itself, if it is one."""
    return optimizer.members if isinstance(optimizer, SeveralOptimizers) else [optimizer]
