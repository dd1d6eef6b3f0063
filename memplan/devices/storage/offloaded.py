"""Offloaded tensors, whose values are in another memory: any use of one has it back first.

The object stays the same, known to modules and optimizers; in the meantime it is empty, and of a class of
this module. What asks for its form alone is answered from the form. Everything else that PyTorch does with a
tensor, a copy or a pickle of it too, first has its holder bring the values back, or refuse. C code of which
PyTorch does not notify us is refused the address (`to_dlpack`); `torch.tensor(weight)`, against which PyTorch
warns anyway, gets an empty tensor. Another tensor on the same memory, taken before, keeps that memory alive.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn

from ...graphs.errors import MemplanError
from ...program.names import full_name
from ...program.program import Value
from ...torch_support.torch_fakes import no_torch_function
from ...torch_support.torch_tensors import (
    HOLD,
    HOOKS_OF_TENSOR,
    attributes_of,
    empty_for_nobody,
    parameter_at,
)

Fill = Callable[[Tensor], None]
"""Writes the bytes of a tensor's storage into these, on whatever device they are."""


class Hold(NamedTuple):
    """Description of a tensor whose values are elsewhere, and the functions that bring them back.

    form: of the tensor as it was.
    kind: its class.
    bring_back: calls `restore`, or raises MemplanError.
    copies: of its whole storage, in whichever memory, or of all its blocks; or raises MemplanError too; see
        host_access.py.
    lost: nothing is to be brought back, but another value may replace it.
    fill: makes the values if there are none yet, see lazy_init.py.
    release: lets go of the copies, which another step has taken over; None if that can't be. Tensors in one
        storage that change hands together have the same function.
    sharing: number of these tensors.
    blocks: returns its blocks of rows, in order, if each has copies of its own; None if it has none.
    """

    form: Value
    kind: type[Tensor]
    bring_back: Callable[[], None]
    copies: Callable[[], Sequence[Any]]
    lost: bool = False
    fill: Fill | None = None
    release: Callable[[], None] | None = None
    sharing: int = 1
    blocks: Callable[[], Sequence[HeldBlock]] | None = None


class HeldBlock(NamedTuple):
    """A block of rows of an offloaded tensor.

    form: of the block, which begins its storage.
    copies: of that storage, in whichever memory.
    """

    rows: slice
    form: Value
    copies: Sequence[Any]


class Offloaded:
    """Class that an offloaded tensor has in addition to its own."""

    _memplan: Hold

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        if readers and function in _READ:
            return function(readers[-1](arguments[0]), *arguments[1:], **keywords)
        if function in _FORM:
            return function(_as_meta(arguments[0]._memplan.form), *arguments[1:], **keywords)
        if function in _HARMLESS or (function == _SET_GRAD and arguments[1] is None):
            with no_torch_function():
                return function(*arguments, **keywords)
        if function in _REPLACE and isinstance(arguments[0], Offloaded):
            return _replaced(function, arguments, keywords, room=function != _SET_DATA)
        if function == _T.detach and (made := _made_parameter(arguments[0])) is not None:
            return made
        offloaded = [tensor for tensor in _within((arguments, keywords)) if isinstance(tensor, Offloaded)]
        if not offloaded:
            raise MemplanError(
                f"{full_name(function)} is given a weight that a planned step holds: call "
                "restore_to_device() first"
            )
        bring_back(offloaded)
        return function(*arguments, **keywords)

    # PyTorch asks no `__torch_function__` about the following.

    def set_(self, *arguments: Any, **keywords: Any) -> Any:
        """Replace memory and form, which need not be those of before."""
        return _replaced(_T.set_, (self, *arguments), keywords, room=False)

    def as_subclass(self, kind: Any) -> Any:
        bring_back([cast("Tensor", self)])
        return cast("Tensor", self).as_subclass(kind)

    def _use_count(self) -> int:
        """Return the number of references from C++: `swap_tensors` asks for it before it swaps class,
        attributes and values, each by itself.
        """
        bring_back([cast("Tensor", self)])
        return cast("Any", self)._use_count()

    @property
    def __dict__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The attributes, which the user's code may copy or exchange, of a tensor that is back.

        memplan's own code asks `attributes_of`.
        """
        tensor = cast("Tensor", self)
        if not attributes_of(tensor)[HOLD].lost:
            bring_back([tensor])
        return attributes_of(tensor)

    def __deepcopy__(self, memo: Any) -> Any:
        bring_back([cast("Tensor", self)])
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if readers:
            made: Tensor = readers[-1](cast("Tensor", self))
            if isinstance(self, nn.Parameter):
                made = nn.Parameter(made, self.requires_grad)
            return made.__reduce_ex__(protocol)
        bring_back([cast("Tensor", self)])
        return self.__reduce_ex__(protocol)


def offload_value(
    tensor: Tensor,
    form: Value,
    bring_back: Callable[[], None],
    copies: Callable[[], Sequence[Any]],
    release: Callable[[], None] | None = None,
) -> None:
    """Empty the tensor and note who holds its values.

    form: its present one.
    """
    kind = type(tensor)
    tensor.data = empty_for_nobody(tensor.dtype, tensor.device)  # before the class, which would notice
    attributes_of(tensor)[HOLD] = Hold(form, kind, bring_back, copies, release=release)
    tensor.__class__ = _offloaded_by(kind)


def hold_anew(tensor: Tensor, hold: Hold) -> None:
    """Give an offloaded tensor another holder."""
    attributes_of(tensor)[HOLD] = hold


def give_up(tensor: Tensor, form: Value, refuse: Callable[[], NoReturn]) -> None:
    """Refuse every use of the tensor's values, until others have replaced them."""
    if not isinstance(tensor, Offloaded):
        offload_value(tensor, form, refuse, refuse)
    hold: Hold = attributes_of(tensor)[HOLD]
    hold_anew(
        tensor,
        hold._replace(bring_back=refuse, copies=refuse, lost=True, fill=None, release=None, blocks=None),
    )


def hold_of(tensor: Tensor) -> Hold | None:
    """Return the hold of an offloaded tensor; None for one that is here."""
    return tensor._memplan if isinstance(tensor, Offloaded) else None


def is_lost(tensor: Tensor) -> bool:
    """Tell whether the tensor's values are lost, once all that may lose them has ended."""
    hold = hold_of(tensor)
    if hold is not None and not hold.lost:
        with suppress(MemplanError):  # only now it may turn out to be lost
            hold.bring_back()
        hold = hold_of(tensor)
    return hold is not None and hold.lost


def restore(tensor: Tensor, values: Tensor) -> None:
    """Give the tensor these values and make it what it was."""
    with no_torch_function():
        tensor.data = values  # first: it is offloaded until it has them
    tensor.__class__ = attributes_of(tensor)[HOLD].kind
    del attributes_of(tensor)[HOLD]


def bring_back(tensors: Iterable[Tensor]) -> None:
    """Bring those back that are offloaded. Raises MemplanError, one line."""
    for tensor in tensors:
        if isinstance(tensor, Offloaded):
            tensor._memplan.bring_back()


@cache
def _offloaded_by(kind: type[Tensor]) -> type[Tensor]:
    return type(f"{kind.__name__}Offloaded", (Offloaded, kind), {})


def _within(argument: Any) -> Iterator[Tensor]:
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _within(part)
    elif isinstance(argument, Mapping):
        yield from _within(tuple(argument.values()))


def _as_meta(form: Value) -> Tensor:
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")


def _replaced(function: Any, arguments: tuple[Any, ...], keywords: Any, *, room: bool) -> Any:
    """Call a function that gives an offloaded tensor, the first argument, other values.

    A lost one that gets none, as the function fails, stays lost.

    room: the function writes into the tensor's memory.
    """
    with replacing(arguments[0], room=room):
        return function(*arguments, **keywords)


@contextmanager
def replacing(tensor: Tensor, *, room: bool = True) -> Generator[None]:
    """Surround a call that replaces the values of an offloaded tensor; see `_replaced`."""
    if not is_lost(tensor):
        bring_back([tensor])
        yield
        return
    hold, form = attributes_of(tensor)[HOLD], attributes_of(tensor)[HOLD].form
    if room:
        made = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
    else:
        made = empty_for_nobody(form.dtype, form.device)
    restore(tensor, made)
    try:
        yield
    except BaseException:
        offload_value(tensor, form, hold.bring_back, hold.copies)
        hold_anew(tensor, hold)
        raise


def _made_parameter(tensor: Tensor) -> Tensor | None:
    """Return what `nn.Parameter(tensor)` wants of `detach`; None if it is not that which calls it.

    It has seen that the tensor is of another class than Parameter, but by then it no longer is; so the
    result, which becomes the new parameter, must not be of the class torch.Tensor itself.
    """
    # Past this function and __torch_function__; the C++ code between has no frame.
    caller = sys._getframe(2)
    if caller.f_code is not nn.Parameter.__new__.__code__ or caller.f_locals["cls"] is not nn.Parameter:
        return None
    bring_back([tensor])
    if type(tensor) is not nn.Parameter:
        return None
    return parameter_at(tensor)


readers: list[Callable[[Tensor], Tensor]] = []
"""While there is one, it answers `detach`, `cpu` and pickles of an offloaded tensor: host_access.py's
`at_home`."""

_T: Any = Tensor
_READ = {_T.detach, _T.cpu}
_SET_DATA = _T.data.__set__
_REPLACE = {_T.copy_, _SET_DATA, _T.module_load}
"""Functions that give a tensor, the first argument, other values."""
_SET_GRAD = _T.grad.__set__
_FORM = {
    _T.shape.__get__,
    _T.ndim.__get__,
    _T.nbytes.__get__,
    _T.__len__,
    *(
        getattr(_T, name)
        for name in ("dim", "is_contiguous", "nelement", "ndimension", "numel", "size", "stride")
    ),
}
"""Attributes and functions that are answered from the form."""

_GET = """
    device dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_nested is_quantized is_sparse itemsize layout
    requires_grad retains_grad
"""
_HARMLESS = {
    *(getattr(_T, name).__get__ for name in _GET.split()),
    _T.requires_grad.__set__,
    *(hooks.__get__ for hooks in HOOKS_OF_TENSOR),
    HOOKS_OF_TENSOR[0].__set__,
    *(getattr(_T, name) for name in ("element_size", "is_complex", "is_floating_point", "requires_grad_")),
    _T.register_hook,
    _T.register_post_accumulate_grad_hook,
}
"""Attributes and functions that have nothing to do with the values."""
