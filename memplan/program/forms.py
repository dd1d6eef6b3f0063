"""Forms of tensors: shape, strides, dtype and device, as the values of a program have them."""

from __future__ import annotations

from torch import Tensor

from .program import Value


def form_of(tensor: Tensor, like: Value) -> Value:
    """Return the tensor's form, at the offset and storage of `like`."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    return like._replace(shape=shape, strides=strides, dtype=tensor.dtype, device=tensor.device)


def described(form: Value) -> str:
    """Describe a form: `torch.float32 [4, 8] with strides [8, 1] on cpu`."""
    return f"{form.dtype} {list(form.shape)} with strides {list(form.strides)} on {form.device}"
