"""Tensors and their gradients as they were before an iteration, put back bit by bit.

A tensor is written only if it has changed, and then past its version counter, which is put back too: autograd
takes every change in place for another value, and a graph of the user's that has saved the tensor is not to
fail because of an iteration that has left the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..devices.storage.offloaded import hold_of, is_lost
from ..torch_support.torch_tensors import memory_of, parts_of_wrapper, set_version, version_of


class SavedTensor:
    """The bytes of a tensor, in host memory, which has most room.

    keep_memory: afterwards it is in the same memory, whatever forward gives it by `.data = …`. Otherwise it
        may be in any, if a schedule moves it.
    """

    def __init__(self, tensor: Tensor, *, keep_memory: bool = True) -> None:
        self.tensor = tensor
        self._parts = [SavedTensor(part, keep_memory=keep_memory) for part in parts_of_wrapper(tensor)]
        self._bytes = None if self._parts else _bytes(tensor)
        self._form = None if self._bytes is None else _form(tensor)
        self._memory = tensor.detach() if keep_memory and self._bytes is not None else None
        self._version, self._requires_grad = version_of(tensor), tensor.requires_grad

    def has_changed(self) -> bool:
        """Tell whether any bit is different, or the form. A tensor whose values were lost has changed."""
        if self._parts:
            return any(part.has_changed() for part in self._parts)
        if is_lost(self.tensor):
            return True
        if self._bytes is None:
            return False
        # As bytes: NaN equals itself, and -0.0 differs from 0.0.
        return _form(self.tensor) != self._form or not torch.equal(self._bytes, _present(self.tensor))

    def put_back(self) -> None:
        for part in self._parts:
            part.put_back()
        if self._memory is not None and (
            is_lost(self.tensor) or _layout(self.tensor) != _layout(self._memory)
        ):
            self.tensor.data = self._memory
        if self._bytes is not None and self.has_changed():
            self._write(self._bytes)
        if hold_of(self.tensor) is None:
            if self.tensor.is_leaf and self.tensor.requires_grad != self._requires_grad:
                self.tensor.requires_grad_(self._requires_grad)
            set_version(self.tensor, self._version)

    def _write(self, bytes_: Tensor) -> None:
        if self._form is not None and (is_lost(self.tensor) or _form(self.tensor) != self._form):
            shape, strides, dtype, device = self._form
            self.tensor.data = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        elements = elements_of(self.tensor.data)
        elements.copy_(bytes_.view(elements.dtype).reshape(elements.shape))


class SavedGradients:
    """The `.grad` of tensors; it is None meanwhile."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._known = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf]
        self._clear()

    def put_back(self) -> None:
        for tensor, gradient in self._known:
            tensor.grad = gradient

    def _clear(self) -> None:
        for tensor, _gradient in self._known:
            tensor.grad = None


def run_all(steps: Iterable[Callable[[], None]]) -> None:
    """Run each step, whatever the others raise. Raises what the first that fails raises."""
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def elements_of(tensor: Tensor) -> Tensor:
    """Return a view with every element of memory once.

    `expand` makes tensors whose rows are the same memory; one whose windows overlap otherwise (`unfold`) is
    all the memory from its first to its last element.
    """
    if 0 in tensor.shape:
        return tensor
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    strides = [1 if size == 1 else stride for size, stride in zip(sizes, tensor.stride(), strict=True)]
    by_stride = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1)
    ends = accumulate((stride * (size - 1) for stride, size in by_stride), initial=0)
    # Each stride passes beyond all elements of the smaller ones: no element is there twice.
    if all(stride > end for (stride, _size), end in zip(by_stride, ends, strict=False)):
        return tensor.as_strided(sizes, strides, tensor.storage_offset())
    span = 1 + sum(stride * (size - 1) for stride, size in by_stride)
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


def _bytes(tensor: Tensor) -> Tensor | None:
    """Return a copy of the elements as bytes. None if there is none to copy: on `meta`, or sparse."""
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        return None
    return _present(tensor)


def _present(tensor: Tensor) -> Tensor:
    elements = elements_of(tensor.detach()).to("cpu", copy=True)
    return elements.contiguous().reshape(-1).view(torch.uint8)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return memory_of(tensor), tensor.storage_offset(), *_form(tensor)
