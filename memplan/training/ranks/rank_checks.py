"""Checks that ranks have the same options, module and operations: what differs is named, on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from torch import Tensor, nn

from ...devices.sharded.ranks import Ranks
from ...graphs.errors import MismatchError
from ...model.iteration import Inputs, tensors_in
from ...program.program import Program
from ..options import Options


def check_options(ranks: Ranks, options: Options, module: nn.Module) -> None:
    """Raise MismatchError, on all ranks, if one has other options, or another optimizer, than rank 0, or if
    a parameter of the module has another dtype or requires_grad there.
    """
    own = {f"{name}=": comparable(value) for name, value in vars(options).items() if name not in _OF_RANK}
    if (optimizer := options.optimizer) is not None:
        own["optimizer="] = type(optimizer).__name__
        own["the optimizer's settings"] = comparable(
            [{name: value for name, value in x.items() if name != "params"} for x in optimizer.param_groups]
        )
    for name, each in module.named_parameters():
        own[f"the dtype of {name}"] = repr(each.dtype)
        own[f"requires_grad of {name}"] = repr(each.requires_grad)
    _check_equal(ranks, own)


def comparable(value: object) -> str:
    """Return a value as a text that is equal on ranks that have equal values.

    A tensor's `repr` names the rank's device; that of many an object its address.
    """
    if isinstance(value, Tensor):
        return f"{value.dtype} {value.tolist()}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {comparable(each)}' for name, each in value.items())}}}"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(comparable, value))}]"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


_OF_RANK = {
    "machine",
    "shard",
    "states",
    "cache",
    "progress",
    "loss_fn",
    "targets",
    "optimizer",
    "scaler",
    "weights",
}
"""Options whose values are a rank's own, or are compared elsewhere."""


def check_operations(ranks: Ranks, form: str, inputs: Inputs, program: Program) -> None:
    """Raise MismatchError, on all ranks, if one has another iteration than rank 0, with what differs.

    form: what must be equal of their programs.
    """
    given = {name: _described(each) for name, each in tensors_in(inputs).items()}
    names = [operation.name for operation in program.operations]
    (known, first, operations), *others = ranks.gathered((form, given, names))
    for rank, (other, there, names) in enumerate(others, 1):
        if other == known:
            continue
        both = zip_longest(operations, names, fillvalue="none")
        own, its = next((pair for pair in both if pair[0] != pair[1]), ("", ""))
        line = f"ranks 0 and {rank} differ in the operations of an iteration"
        line += f", {own} on one and {its} on the other" if own else ""
        for name, layout in first.items():
            if there.get(name, layout) != layout:
                raise MismatchError(
                    f"{line}, and in input {name}, {layout} and {there[name]}: give it one layout on all "
                    "ranks, as contiguous() and detach() do"
                )
        raise MismatchError(
            f"{line}: they must run the same plan. Give all ranks the same module, and leave out of forward "
            "what only some ranks do"
        )


def _described(tensor: Tensor) -> str:
    """Describe what of a batch's tensor, but for its values, decides which operations run on it."""
    layout = f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
    return f"{layout} that requires a gradient" if tensor.requires_grad else layout


def _check_equal(ranks: Ranks, own: Mapping[str, str]) -> None:
    """Raise MismatchError, on all ranks, for the first text that differs, by its name in the line."""
    first, *others = ranks.gathered(own)
    for rank, row in enumerate(others, 1):
        for name, known in first.items():
            if row.get(name, known) != known:
                raise MismatchError(f"ranks 0 and {rank} differ in {name}: they must run the same plan")
