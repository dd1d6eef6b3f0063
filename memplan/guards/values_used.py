"""The values of inputs and buffers that a trace has used, and the check whether another batch has the
same.

A model's code may ask for values (`int(lengths.max())`, `x[mask]`), and a trace holds the answers. So each
answer is recomputed from every later batch, by the same calls, before its plan runs: a batch with other
answers needs another plan. The answers count, not all that they follow from: a plan made for the largest
index 19 holds for any indices whose largest is 19.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..torch_support.torch_tensors import memory_of
from ..torch_support.torch_trees import tensors_among, tree_leaves, tree_map

BUFFERS, INPUTS = "the buffer ", "the input "
"""Prefixes of their names."""
MOST_CALLS = 300
"""Largest number of calls to recompute answers; beyond it the tensors that they follow from must be equal
instead.
"""


MOST_DECIDED = 256
"""Elements of a decision that follows from real numbers: what is larger is data, other in every batch."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Placeholder for a tensor among a call's arguments."""

    number: int


@dataclass(frozen=True, slots=True)
class Blank:
    """Placeholder for a tensor of which only the form counts: `ones_like` of it has its strides, too."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def replay(target: Callable[..., Any], arguments: Any, keywords: Any, value: Callable[[int], Tensor]) -> Any:
    """Make a call of a tape once more, on the CPU. value: of a slot, by its number."""

    def real(leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            return value(leaf.number)
        if isinstance(leaf, Blank):
            return torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype, device="cpu")
        return leaf

    return target(*tree_map(real, arguments), **tree_map(real, keywords))


class _Call(NamedTuple):
    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[int, ...]
    changes: bool

    @property
    def read(self) -> set[int]:
        return {
            leaf.number for leaf in tree_leaves((self.arguments, self.keywords)) if isinstance(leaf, Slot)
        }


class _Told(NamedTuple):
    """A value that the trace has used.

    place: the line that asked.
    """

    slot: int
    value: Tensor
    place: str


class Tape:
    """Calls on known values in their order, and which of these the trace has used.

    tensors: the real ones, by slot.
    named: the slots of inputs and buffers.
    _follows: memory whose values follow from these.
    _real: memory whose values follow from inputs of real numbers.
    _rounded: the part of it that arithmetic with real numbers has led to, which rounds otherwise elsewhere.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.named: dict[int, str] = {}
        self._first: dict[int, Tensor] = {}
        self._follows: set[int] = set()
        self._real: set[int] = set()
        self._rounded: set[int] = set()
        self._items: list[_Call | _Told] = []

    def given(self, name: str, tensor: Tensor) -> Slot:
        slot = self._slot(tensor)
        self.named[slot.number] = name
        self._first[slot.number] = tensor.clone()
        self._follows.add(memory_of(tensor))
        if name.startswith(INPUTS) and is_real(tensor):
            self._real.add(memory_of(tensor))
        return slot

    def constant(self, tensor: Tensor) -> Slot:
        """Return the slot of a tensor that starts every iteration with the values that it has now."""
        before = tensor.clone()  # the code may change the tensor in place; a replay begins with this one
        return self._note(torch.clone, (before,), {}, [tensor], changes=False)[0]

    def run(self, target: Any, arguments: Any, keywords: Any, *, changes: bool) -> tuple[Any, list[Slot]]:
        """Make a call on the values of its slots, note it, and return its result and the slots of its
        tensors.

        changes: it changes some of its arguments too.
        """
        made = replay(target, arguments, keywords, self.tensors.__getitem__)
        return made, self._note(target, arguments, keywords, tensors_among(made), changes=changes)

    def _note(
        self, target: Any, arguments: Any, keywords: Any, results: Sequence[Tensor], *, changes: bool
    ) -> list[Slot]:
        slots = [self._slot(result) for result in results]
        made = _Call(target, arguments, keywords, tuple(slot.number for slot in slots), changes)
        self._items.append(made)
        if any(self.follows(Slot(number)) for number in made.read):
            touched = (*results, *(self.tensors[number] for number in made.read if changes))
            self._follows.update(map(memory_of, touched))
            read = {self._memory(number) for number in made.read}
            if not read.isdisjoint(self._real):
                new = {memory_of(tensor) for tensor in touched if is_real(tensor)} - read
                self._real.update(map(memory_of, touched))
                if new or not read.isdisjoint(self._rounded):
                    self._rounded.update(map(memory_of, touched))
        return slots

    def tell(self, slot: Slot, place: str) -> None:
        """Note that the slot's value is used in the trace."""
        if self.follows(slot):
            self._items.append(_Told(slot.number, self.tensors[slot.number].clone(), place))

    def follows(self, slot: Slot) -> bool:
        return self._memory(slot.number) in self._follows

    def decides(self, slot: Slot, *, elsewhere: bool) -> bool:
        """Tell whether code may be answered by the slot's value: unless it follows from real numbers and is
        no decision.

        elsewhere: the iteration computes it on another device than the tape does.
        """
        value, memory = self.tensors[slot.number], self._memory(slot.number)
        if memory not in self._real:
            return True
        rounded = elsewhere and memory in self._rounded
        return not (is_real(value) or value.numel() > MOST_DECIDED or rounded)

    def used(self) -> ValuesUsed | None:
        """Return the used values; None if none that follows from inputs or buffers was used."""
        texts = [item for item in self._items if isinstance(item, _Told)]
        if not texts:
            return None
        slots = {item.slot for item in texts}
        memories = {self._memory(slot) for slot in slots}
        kept: list[_Call | _Told] = []
        # From the last: a call stays if a later item needs its result or its change.
        for item in reversed(self._items):
            if isinstance(item, _Call):
                read = item.read
                changes = item.changes and any(self._memory(slot) in memories for slot in read)
                if slots.isdisjoint(item.outputs) and not changes:
                    continue
                slots |= read
                memories |= {self._memory(slot) for slot in read}
            kept.append(item)
        named = {slot: name for slot, name in self.named.items() if slot in slots}
        # Comparing the inputs themselves is cheaper than so many calls.
        if len(kept) > MOST_CALLS:
            kept = [_Told(slot, self._first[slot], texts[0].place) for slot in named]
        return ValuesUsed(named, kept[::-1], texts[0].place)

    def _slot(self, tensor: Tensor) -> Slot:
        self.tensors.append(tensor)
        return Slot(len(self.tensors) - 1)

    def _memory(self, slot: int) -> int:
        return memory_of(self.tensors[slot])


class ValuesUsed:
    """The answers that a plan holds for.

    names: the inputs and buffers that they follow from.

    The memory that the check takes is free when the iteration begins, and is not in its plan.
    """

    def __init__(self, named: Mapping[int, str], items: Sequence[_Call | _Told], place: str) -> None:
        self._named, self._items, self._place = named, items, place
        self._changes = any(isinstance(item, _Call) and item.changes for item in items)
        self.names = tuple(named.values())
        # Each result is freed after its last use.
        lasts = {slot: number for number, item in enumerate(items) for slot in _slots(item)}
        self._last = [[slot for slot in _slots(item) if lasts[slot] == n] for n, item in enumerate(items)]

    def difference(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Describe the difference, if these inputs and buffers, by name, have other answers.

        Returns None if they have the same.
        """
        with torch.no_grad():
            found = {slot: self._here(tensors[name]) for slot, name in self._named.items()}
            for number, item in enumerate(self._items):
                try:
                    same = self._again(item, found)
                    for slot in self._last[number]:
                        found.pop(slot, None)
                except (RuntimeError, IndexError, ValueError):  # of values that the calls do not suit
                    same = False
                if not same:
                    place = item.place if isinstance(item, _Told) else self._place
                    return (
                        f"{place}uses values that follow from {' and '.join(self.names)}; they differ from "
                        "those that the plan is for"
                    )
        return None

    @property
    def of_inputs(self) -> bool:
        """Whether they follow from inputs alone."""
        return all(name.startswith(INPUTS) for name in self.names)

    def texts(self) -> list[str]:
        """Return the answers, as text."""
        texts = (item for item in self._items if isinstance(item, _Told))
        return [f"{item.place}{item.value.dtype} {item.value.tolist()}" for item in texts]

    def _here(self, tensor: Tensor) -> Tensor:
        here = tensor.detach().cpu()
        # On the CPU `cpu()` copies nothing: a replayed change would be the user's tensor's.
        return here.clone() if self._changes and here.data_ptr() == tensor.data_ptr() else here

    def _again(self, item: _Call | _Told, found: dict[int, Any]) -> bool:
        if isinstance(item, _Told):
            return _equal(found[item.slot], item.value)

        made = replay(item.target, item.arguments, item.keywords, found.__getitem__)
        found.update(zip(item.outputs, tensors_among(made), strict=True))
        return True


def is_real(tensor: Tensor) -> bool:
    """Tell whether a tensor holds real or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def _slots(item: _Call | _Told) -> set[int]:
    return item.read.union(item.outputs) if isinstance(item, _Call) else {item.slot}


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # NaN counts as equal to NaN: code takes the same branch.
    return bool(((one == other) | ((one != one) & (other != other))).all())
