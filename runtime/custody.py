"""Tensors of the module that a schedule moves: taken from it while iterations run, and given back.

In between the module's own tensor objects are empty, so that nothing but the schedule holds memory; they stay
the same objects all the time, known to optimizers and to other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .copies import raw, value
from .program import Program


class Custody:
    """owners: per resident value in a moved storage, where the module has its tensor."""

    def __init__(self, program: Program, owners: Mapping[int, Callable[[], Tensor]]) -> None:
        self._forms = {resident: program.values[resident] for resident in owners}
        self._owners = owners
        self.taken = False

    def take(self) -> dict[int, Tensor]:
        """The bytes of the storages."""
        bytes_: dict[int, Tensor] = {}
        for resident, owner in self._owners.items():
            tensor = owner()
            bytes_.setdefault(self._forms[resident].storage, raw(tensor))
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.taken = True
        return bytes_

    def give_back(self, bytes_: Mapping[int, Tensor]) -> None:
        for resident, owner in self._owners.items():
            form = self._forms[resident]
            owner().data = value(bytes_[form.storage], form)
        self.taken = False
