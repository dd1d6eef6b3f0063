"""Tensors without their values: memory, version, attributes, hooks, parts."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype
from torch.utils.weak import WeakIdKeyDictionary

from .torch_fakes import no_torch_function

__all__ = ["WeakIdKeyDictionary"]

VERSION = "_version"
"""A tensor's count of its changes."""

HOOKS_OF_TENSOR: Any = (Tensor._backward_hooks, Tensor._post_accumulate_grad_hooks)
"""The attributes in which a tensor keeps its hooks; to read them says nothing of its values."""

HOLD = "_memplan"
"""The attribute of an offloaded tensor that says who holds its values, see devices/storage/offloaded.py."""

_ATTRIBUTES: Any = vars(Tensor)["__dict__"].__get__

_OF_GRAD: Any = Tensor.grad

GRADIENT_OF_TENSOR: Any = (_OF_GRAD.__get__, _OF_GRAD.__set__)
"""Functions that a mode sees when `.grad` is read or set."""


def wraps_others(tensor: Tensor) -> bool:
    """Tell whether a tensor is made of other tensors, and has no memory of its own."""
    return hasattr(type(tensor), "__tensor_flatten__") and not isinstance(tensor, FakeTensor)


def parts_of_wrapper(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that a wrapper is made of; none if it is not a wrapper."""
    if not wraps_others(tensor):
        return []
    wrapper: Any = tensor
    names, _context = wrapper.__tensor_flatten__()
    return [getattr(wrapper, name) for name in names]


def wrapper_of(like: Tensor, parts: Iterable[Tensor]) -> Tensor:
    """Return a wrapper like another one, made of these parts."""
    wrapper: Any = like
    names, context = wrapper.__tensor_flatten__()
    made = dict(zip(names, parts, strict=True))
    return type(wrapper).__tensor_unflatten__(made, context, like.shape, like.stride())


def coo_parts(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices and the values of a COO tensor, coalesced or not."""
    return matrix._indices(), matrix._values()


def memory_of(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, real or fake, as long as the tensor lives.

    An offloaded tensor stays so: it shares its memory with none.
    """
    with no_torch_function():
        return tensor.untyped_storage()._cdata


def identity_of(generator: torch.Generator) -> int:
    """Return a number that is equal for two objects that stand for one generator: dispatch makes new ones."""
    return generator._cdata


def parameter_at(tensor: Tensor) -> Tensor:
    """Return a parameter in the tensor's memory, made as `nn.Parameter` makes it."""
    return Tensor._make_subclass(nn.Parameter, tensor.detach())


def version_of(tensor: Tensor) -> int:
    """Return how often the tensor has been changed in place."""
    # Tensors of inference mode count no versions, and refuse the question.
    return -1 if tensor.is_inference() else tensor._version


def set_version(tensor: Tensor, version: int) -> None:
    """Set the number of changes that autograd counts for the tensor; nothing for one without a count (-1)."""
    if version >= 0 and not tensor.is_inference() and tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def has_hooks(tensor: Tensor) -> bool:
    """Tell whether something is to be done with the tensor's gradient."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def any_has_hooks(tensors: Sequence[Tensor]) -> bool:
    """Tell whether one of the tensors has hooks; without `__torch_function__`."""
    of_gradient, after_accumulation = HOOKS_OF_TENSOR
    return any(map(of_gradient.__get__, tensors)) or any(map(after_accumulation.__get__, tensors))


def grouped_by_dtype(tensors: list[Tensor]) -> list[int]:
    """Return the tensors' positions, those of one dtype together, as `clip_grad_norm_` groups gradients of
    one device.
    """
    groups: Any = _group_tensors_by_device_and_dtype([tensors], with_indices=True)  # pyright: ignore
    return [place for _tensors, places in groups.values() for place in places]


def attributes_of(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor's `__dict__`; of an offloaded one without having it back."""
    return _ATTRIBUTES(tensor)


def empty_for_nobody(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create a tensor without memory, whose address nobody gets: C code that asks for it raises
    RuntimeError.
    """
    made = torch.empty(0, dtype=dtype, device=device)
    torch._C._set_throw_on_mutable_data_ptr(made)
    return made
