"""The module's outputs in addition to the loss: any nest of tensors, as a result of the iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..graphs.errors import InputError
from ..torch_support.torch_trees import leaves_and_form

Wanted = bool | tuple[str, ...]
"""Which tensors of the nest: all, none, or those with these names, like `logits` or `hidden_states.0`."""

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


class Output(NamedTuple):
    """Outputs of the module, taken apart.

    tensors: those requested, by their path, an empty name for a module that returns one.
    rest: the nest's leaves, with the paths for tensors; None for a tensor that was not requested.
    form: makes the nest of leaves.
    """

    tensors: Mapping[str, Tensor]
    rest: tuple[Any, ...]
    form: Callable[[list[Any]], Any]

    @property
    def names(self) -> list[str]:
        return [str(leaf) for leaf in self.rest if isinstance(leaf, _Place)]

    def without_tensors(self) -> Output:
        return self._replace(tensors={})

    def nest(self, tensors: Mapping[str, Tensor]) -> Any:
        """Return the nest that the module returns, with these tensors."""
        return self.form([tensors[leaf] if isinstance(leaf, _Place) else leaf for leaf in self.rest])


class _Place(str):
    """Placeholder for a tensor in the nest."""


def _only(leaves: list[Any]) -> Any:
    return leaves[0]


NOTHING = Output({}, (None,), _only)


def output_of(returned: Any, wanted: Wanted, loss: Tensor | None) -> Output:
    """Take the requested outputs out of what the module returns. Raises InputError, one line.

    The loss itself is always among them, since it is kept anyway.
    """
    if wanted is False:
        return NOTHING
    leaves, form = leaves_and_form(returned)
    tensors: dict[str, Tensor] = {}
    rest: list[Any] = []
    for name, leaf in leaves.items():
        if not isinstance(leaf, Tensor):
            if _is_named(name, wanted) and not isinstance(leaf, _SIMPLE):
                raise InputError(
                    f"the output {name or 'of the module'} is a {type(leaf).__name__}, which can't be taken "
                    "apart: name the tensors that are wanted, like return_outputs=('logits',)"
                )
            rest.append(leaf if isinstance(leaf, _SIMPLE) else None)
        elif leaf is loss or _is_named(name, wanted):
            tensors[name] = leaf
            rest.append(_Place(name))
        else:
            rest.append(None)
    for name in () if wanted is True else wanted:
        if not any(_is_named(there, (name,)) for there in leaves):
            raise InputError(f"the module returns no {name!r}: {_listed(leaves)}")
    return Output(tensors, tuple(rest), form)


def _is_named(name: str, wanted: Wanted) -> bool:
    if isinstance(wanted, bool):
        return wanted
    return any(name == one or name.startswith(f"{one}.") for one in wanted)  # hidden_states.0 …


def _listed(leaves: Mapping[str, Any]) -> str:
    names = [name for name, leaf in leaves.items() if isinstance(leaf, Tensor)]
    if names == [""]:
        return "it returns one tensor, return_outputs=True"
    return f"it returns {', '.join(names)}" if names else "it returns no tensors"
