"""The values that are known while tracing on shapes alone, for code that asks for them.

What follows from shapes alone (positions, causal masks, buckets) is the same in every iteration. Models
branch on such values (`if (positions == 0).all():`), and the trace may follow, as eager does. What follows
from buffers and from inputs of whole numbers or bits (lengths, indices, masks) is known too if the trace is
to use it: then each answer is noted, and checked before every iteration (values_used.py). From inputs of real
numbers only decisions follow: a few bits or whole numbers, like which images of a batch are empty. What
parameters have a part in stays unknown, and code that asks for it is refused: it could take another branch in
the next iteration. Small tensors from outside, an attribute's, are constants of the plan,
compared before each iteration by guards/reads/reads.py: they are known.

For each fake tensor made of nothing but known values and numbers, the real one is kept too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices.absent_gpu.devices import is_absent_gpu
from ..devices.calls.randomness import draws
from ..guards.reads.contents import LARGEST_TENSOR
from ..guards.values_used import Blank, Slot, Tape, replay
from ..torch_support.hints import NUMBERS
from ..torch_support.torch_fakes import (
    DataDependentOutputException,
    DispatchMode,
    FakeTensor,
    device_of_fake,
    no_dispatch_modes,
)
from ..torch_support.torch_operators import (
    ASKS_FOR_A_NUMBER,
    UNIQUE,
    asks_for_device,
    schema_of,
    written_tensors,
)
from ..torch_support.torch_tensors import WeakIdKeyDictionary, memory_of
from ..torch_support.torch_trees import tensors_among, tree_map
from ..torch_support.unsupported import is_value_dependent, note_origin, users_line

MOST_ELEMENTS = 2**22
"""A larger tensor is not kept. No model is known that branches on one."""

aten: Any = torch.ops.aten
_ASKS = {ASKS_FOR_A_NUMBER, aten.is_nonzero.default, aten.equal.default}
_LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default}
_SHAPED_BY_VALUES = {
    *(aten.nonzero.default, aten.bincount.default, aten.repeat_interleave.Tensor),
    *(UNIQUE, aten.unique_dim.default, aten.unique_consecutive.default),
}
"""Operators whose results have a shape that depends on values: they become constants of the trace."""
SHAPE_ALONE = {
    each.default
    for each in (
        *(aten.ones_like, aten.zeros_like, aten.full_like, aten.new_ones, aten.new_zeros, aten.new_full),
        *(aten.empty_like, aten.new_empty, aten.new_empty_strided),
    )
}
"""Operators whose results do not depend on the values of their tensor."""


class KnownValues(DispatchMode):
    """Mode that answers what is known and passes everything on.

    tape: how known values came about.
    _known: fake tensor -> the slot of the real one, on the CPU; views of one are views of the other.
    _spoilt: memory into which something unknown has been written since.
    _real: tensors that the trace does not see, for kernels that read values, and what follows from them.
    """

    def __init__(
        self,
        given: Iterable[tuple[str, Tensor, Tensor]] = (),
        lines: Collection[str] | None = None,
        before: KnownValues | None = None,
        origin: Callable[[Sequence[Tensor]], str] = lambda _tensors: "",
    ) -> None:
        """Start with the values of small inputs and buffers known.

        given: inputs and buffers whose values may be used: name, fake tensor, real one.
        lines: of the user's code, that get answers which follow from these; None for all.
        before: of the iteration before this one: what it knew of tensors that are still there (a mask that
            an attribute holds) is known here too, unless it followed from inputs or buffers.
        origin: returns what unknown values follow from.
        """
        super().__init__()
        self._lines, self._origin = lines, origin
        self.tape = Tape()
        self._known: Any = WeakIdKeyDictionary()
        self._spoilt: dict[int, torch.UntypedStorage] = {}
        self._real: Any = WeakIdKeyDictionary()
        with no_dispatch_modes():
            for name, fake, real in given:
                if real.numel() <= MOST_ELEMENTS:
                    # A copy: the trace must see one value, whatever changes the buffer meanwhile.
                    self._known[fake] = self.tape.given(name, real.detach().to("cpu", copy=True))
            for fake, real in () if before is None else before.constants():
                if fake not in self._known:
                    self._known[fake] = self.tape.constant(real)

    def constants(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors whose values follow from shapes and constants alone, each with a real one."""
        alone = [(fake, slot) for fake, slot in self._known.items() if not self.tape.follows(slot)]
        return [
            (fake, self.tape.tensors[slot.number].clone()) for fake, slot in alone if self._is_known(fake)
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call of the trace, by the first of these cases that fits:

        - a constant of the user's code is lifted into the trace: its values are known;
        - a selection by a known mask is an index, and known masks among indices become positions;
        - all tensors are real: the call is real too;
        - the code asks for a value that is known: the answer is the real one, noted on the tape;
        - the result's shape depends on known values: the result is a constant of the trace;
        - the call writes something unknown: the memory is spoilt, nothing in it is known any more;
        - everything read is known and the result is small: the result is known too.
        """
        if asks_for_device(func, args):
            return device_of_fake(args[0])
        kwargs = kwargs or {}
        if func in _LIFTS and not isinstance(args[0], FakeTensor):
            made = func(*args, **kwargs)
            self._known[made] = self._constant(args[0])
            return made
        if func is aten.masked_select.default and self._is_known(args[1]):
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in args))
            tensor, mask = (self._call(aten.expand.default, each, shape) for each in args)
            func, args = aten.index.Tensor, (tensor, [mask])
        if func is aten.index.Tensor:
            args = (args[0], self._as_numbers(args[1]))
        tensors = tensors_among((args, kwargs))
        if tensors and self._real and all(tensor in self._real for tensor in tensors):
            with no_dispatch_modes():
                made = func(*args, **kwargs)
            self._real.update((leaf, None) for leaf in tensors_among(made))
            return made
        known = func in SHAPE_ALONE or all(map(self._is_known, tensors))
        known = known and not draws(func, args, kwargs)
        if known and func in _ASKS and (any(isinstance(each, FakeTensor) for each in tensors) or not tensors):
            for tensor in tensors:
                self._tell(tensor)
            return self._answer(func, args, kwargs)
        if known and func in _SHAPED_BY_VALUES:
            return self._constants(func, args, kwargs)
        try:
            made = func(*args, **kwargs)
        except Exception as error:
            if is_value_dependent(error):
                note_origin(error, self._origin(tensors))
            raise
        if schema_of(func).is_mutable and not known:
            self._spoilt.update(
                # The storage is held, so that no other gets its identity.
                (memory_of(tensor), tensor.untyped_storage())
                for tensor in written_tensors(func, args, kwargs)
            )
        if known and _is_small(made):
            _real, slots = self._run(func, args, kwargs, changes=schema_of(func).is_mutable)
            self._known.update(zip(tensors_among(made), slots, strict=True))
        return made

    def real(self, numbers: list[int]) -> Tensor:
        """Return a real tensor of numbers that the code was given."""
        with no_dispatch_modes():
            made = torch.tensor(numbers, device="cpu")
        self._real[made] = None
        return made

    def value_of(self, tensor: Any) -> Any:
        """Return what the tensor holds in every iteration of the plan, as an array.

        Returns None if that is unknown.
        """
        if not isinstance(tensor, Tensor):
            return None
        with no_dispatch_modes():
            if tensor in self._real:
                return tensor.numpy()
            if not self._is_known(tensor):
                return None
            self._tell(tensor)
            # A copy: the user's code may write into the array.
            return self.tape.tensors[self._known[tensor].number].clone().numpy()

    def _tell(self, tensor: Tensor) -> None:
        with no_dispatch_modes():
            slot, place = self._known[tensor], users_line()
            if self._lines is not None and place not in self._lines and self.tape.follows(slot):
                raise DataDependentOutputException(ASKS_FOR_A_NUMBER)
            if not self.tape.decides(slot, elsewhere=tensor.device.type != "cpu"):
                error = DataDependentOutputException(ASKS_FOR_A_NUMBER)
                note_origin(error, NUMBERS)
                raise error
            self.tape.tell(slot, place)

    def _as_numbers(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Replace known masks among indices by the positions that they pick."""
        found: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8) or not self._is_known(index):
                found.append(index)
            else:
                places = self._constants(aten.nonzero.default, (index,), {})
                found += self._call(aten.unbind.int, places, 1)
        return found

    def _constants(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the results as constants of the trace."""
        real, slots = self._run(func, args, kwargs, changes=False)
        device = tensors_among((args, kwargs))[0].device
        made: list[Tensor] = []
        for leaf, slot in zip(tensors_among(real), slots, strict=True):
            with no_dispatch_modes():
                constant = leaf.to("cpu" if is_absent_gpu() else device, copy=True)
            lifted = aten.lift_fresh_copy.default(constant)
            made.append(lifted.to(device) if is_absent_gpu() else lifted)
            self._known[made[-1]] = slot
            self._tell(made[-1])
        return made[0] if isinstance(real, Tensor) else tuple(made)

    def _call(self, func: Any, *args: Any) -> Any:
        return self.__torch_dispatch__(func, (), args)

    def _is_known(self, tensor: Tensor) -> bool:
        if tensor not in self._known and _is_outside(tensor):
            aten.detach.default(tensor)  # what notes such tensors sees it here, at the user's line
            self._known[tensor] = self._constant(tensor)
        return tensor in self._known and memory_of(tensor) not in self._spoilt

    def _constant(self, tensor: Tensor) -> Slot:
        with no_dispatch_modes():
            return self.tape.constant(tensor.detach().to("cpu", copy=True))

    def _run(self, func: Any, args: Any, kwargs: Any, *, changes: bool) -> tuple[Any, list[Slot]]:
        """Make the call on the real tensors and note it on the tape. Returns its result, and the slots."""
        written = self._on_tape(func, args, kwargs)
        with no_dispatch_modes():
            return self.tape.run(func, *written, changes=changes)

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        written = self._on_tape(func, args, kwargs)
        with no_dispatch_modes():
            return replay(func, *written, self.tape.tensors.__getitem__)

    def _on_tape(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments with tensors replaced by slots, on the CPU."""

        def put(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            if isinstance(leaf, FakeTensor) and func in SHAPE_ALONE:
                return _blank(leaf)
            return self._known[leaf] if isinstance(leaf, Tensor) and leaf in self._known else leaf

        return tree_map(put, args), tree_map(put, kwargs)


def _blank(fake: Tensor) -> Blank:
    strided = fake.layout is torch.strided
    strides = fake.stride() if strided else torch.empty(fake.shape, device="meta").stride()
    return Blank(tuple(fake.shape), tuple(strides), fake.dtype)


def _is_outside(tensor: Tensor) -> bool:
    """Tell whether the tensor is a real one whose values are compared before each iteration."""
    ordinary = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    return ordinary and tensor.device.type != "meta" and tensor.nbytes <= LARGEST_TENSOR


def _is_small(made: Any) -> bool:
    leaves = tensors_among(made)
    return bool(leaves) and all(leaf.numel() <= MOST_ELEMENTS for leaf in leaves)
