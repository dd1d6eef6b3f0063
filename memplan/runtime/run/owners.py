"""The tensors with which an iteration starts, and who owns them: the module, the optimizer, the trace."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial

from torch import Tensor, nn

from ...devices.sharded.local_tensors import planned_local
from ...model.attached import attached_places, read_attached
from ...program.program import Program
from ...updates.state import OptimizerState

Owner = Callable[[], Tensor]


class Owners:
    """The tensors with which an iteration starts.

    places: by the name of each of the module's registered tensors its submodule and attribute.
    attached: by name where the tensors are that parameters hold as attributes.
    constants: of the trace, by value.
    optimizer: its states, None if nothing is updated.
    local: of weights that are DTensors a plan moves the local tensors.
    """

    def __init__(
        self, module: nn.Module, program: Program, optimizer: OptimizerState | None, *, local: bool = False
    ) -> None:
        self._local = local
        self._program, self._optimizer = program, optimizer
        attached = attached_places(module)
        named = (*program.parameters, *program.buffers)
        self.places = {name: _place(module, name) for name in named if name not in attached}
        self.attached = {name: attached[name] for name in program.buffers if name in attached}
        self.constants = _apart(program.constants)

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers as they are now: `.to()` and some modules replace their tensors."""
        own = {name: getattr(module, attribute) for name, (module, attribute) in self.places.items()}
        return own | read_attached(self.attached) if self.attached else own

    def _tensor(self, name: str) -> Tensor:
        if name in self.attached:
            return read_attached({name: self.attached[name]})[name]
        tensor = getattr(*self.places[name])
        return planned_local(tensor) if self._local else tensor

    def of(self, storages: Container[int]) -> dict[int, tuple[str, Owner]]:
        """Return, per resident value in one of these storages, its name, and a function that returns its
        tensor.
        """
        program = self._program
        named = {**program.parameters, **program.buffers}
        owners: dict[int, tuple[str, Owner]] = {
            value: (name, partial(self._tensor, name)) for name, value in named.items()
        }
        if self._optimizer is not None:
            for key, value in program.states.items():
                owners[value] = (".".join(key), partial(self._optimizer.tensor, *key))
        for value in self.constants:
            owners[value] = ("a constant of the trace", partial(self.constants.__getitem__, value))
        return {value: owner for value, owner in owners.items() if program.values[value].storage in storages}


def _apart(constants: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the constants, each a separate tensor: the trace holds one that is used twice twice."""
    known: dict[int, int] = {}
    return {
        value: tensor if known.setdefault(id(tensor), value) == value else tensor.clone()
        for value, tensor in constants.items()
    }


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule and the attribute of a dotted name."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute
