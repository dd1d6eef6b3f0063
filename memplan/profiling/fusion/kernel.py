"""A group's calls compiled by PyTorch's Inductor: C++ for the CPU, Triton for CUDA.

Compiled kernels are in Inductor's own cache on disk, so a later start only reads them. Compilers run
concurrently, while Inductor writes the code of other kernels. A kernel returns exactly the forms that the
program has, each in separate memory; a group for which Inductor makes others has no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from ...devices.measuring.synthetic_inputs import elements_spanned
from ...devices.storage.blocks import size_bytes
from ...graphs.errors import InputError
from ...program.program import Value
from ...torch_support.below_autograd import as_traced
from ...torch_support.torch_inductor import compiler_fault, inductor
from ...torch_support.torch_tensors import memory_of
from .members import Members


class Kernel:
    """A compiled function of the values that a group reads, which returns those that others need.

    key: the same for kernels that compute the same from inputs of the same forms.
    """

    def __init__(self, name: str, key: str, run: Callable[[list[Tensor]], Sequence[Tensor]]) -> None:
        self.__name__ = name
        self.key = key
        self._run = run

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._run(list(tensors))

    def __repr__(self) -> str:
        return f"{self.__name__} {self.key}"


_known: dict[str, Kernel | None] = {}
"""The kernels of this process, by text."""


def check_compiler(device: torch.device) -> None:
    """Raise InputError, one line, if nothing can be compiled for the device."""
    if fault := compiler_fault(device):
        raise InputError(f"operations can't be compiled here: {fault}")


def kernels(several: Sequence[Members]) -> list[Kernel | None]:
    """Compile kernels concurrently; None for one that Inductor can't compile so that it returns what the
    program expects.
    """
    texts = [members.text() for members in several]
    new = {text: members for text, members in zip(texts, several, strict=True) if text not in _known}
    begun = {text: _try(partial(_begun, members)) for text, members in new.items()}
    for text, members in new.items():
        _known[text] = _try(partial(_ended, members, text, begun[text]))
    return [_known[text] for text in texts]


def _try(step: Callable[[], Any]) -> Any:
    """Run a step; None if Inductor or the compiler fail."""
    try:
        return step()
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError):
            # Out of memory is no fault of the kernel.
            raise
        return None


def _begun(members: Members) -> Any:
    values = members.program.values
    inputs = [filled(values[value]) for value in members.inputs]
    return inductor(members, inputs, [values[value].strides for value in members.outputs])


def _ended(members: Members, text: str, begun: Callable[[], Any] | None) -> Kernel | None:
    if begun is None:
        return None
    values = members.program.values
    wanted = [values[value] for value in members.outputs]
    inputs = [filled(values[value]) for value in members.inputs]
    run = begun()
    with as_traced(members.program.device):
        made = list(run(list(inputs)))
    taken = [memory_of(tensor) for tensor in inputs]
    sizes = [members.program.storages[form.storage].bytes for form in wanted]
    for tensor, form, size in zip(made, wanted, sizes, strict=True):
        # A plan frees each result by itself, so no two may share memory.
        if not _is_of(tensor, form, size, members.program.device) or memory_of(tensor) in taken:
            return None
        taken.append(memory_of(tensor))
    return Kernel(members.name(), sha256(text.encode()).hexdigest()[:16], run)


def _is_of(tensor: Tensor, form: Value, size: int, device: torch.device) -> bool:
    layout = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), tensor.dtype)
    expected = (form.shape, form.strides, form.offset, form.dtype)
    return layout == expected and size_bytes(tensor, device) == size


def filled(form: Value) -> Tensor:
    """Create a tensor of this form, all ones."""
    made: Any = torch.ones(elements_spanned(form), dtype=form.dtype, device=form.device)
    return made.as_strided(form.shape, form.strides)
