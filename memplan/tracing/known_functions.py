"""Functions of torch that read values without a visible operator: packed sequences, CTC losses,
`tolist()`, tensors made of lists of others.

If the values are known (known_values.py) they are given to the function, and what needs them is done by other
operators of the same results, or by the same with the values as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..devices.absent_gpu.devices import is_absent_gpu
from ..torch_support.hints import CUDNN, IN_CUDNN
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_operators import CTC_LOSS, PACK, PAD_PACKED
from ..torch_support.unsupported import TraceError, users_line
from .known_values import KnownValues

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CUDNN = f"{IN_CUDNN}: {CUDNN}"
_ABSENT = (
    "recurrent layers can't be estimated for a GPU that is not here, where they run as cuDNN's kernels: call "
    "nn.LSTMCell or nn.GRUCell for each step, or profile the model on the GPU with "
    "torch.backends.cudnn.enabled = False"
)


class KnownFunctions(TorchFunctionMode):
    """Mode that answers functions which read values.

    values: None if none are known.
    """

    def __init__(self, values: KnownValues | None) -> None:
        super().__init__()
        self._values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _RECURRENT and is_absent_gpu():
            raise TraceError(f"{users_line()}{_ABSENT}")
        if name in _RECURRENT and torch.backends.cudnn.is_acceptable(args[0]):
            raise TraceError(f"{users_line()}{_CUDNN}")
        if name in ASSEMBLES and (made := assembled(name, args, kwargs)) is not None:
            return made
        way = _WAYS.get(name)
        if way is not None and self._values is not None:
            made = way(self._values, func, *args, **kwargs)
            if made is not None:
                return made
        return func(*args, **kwargs)


def _pack(values: KnownValues, _func: Any, tensor: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """Replace `_pack_padded_sequence`: the steps one after the other, each without the samples that have
    ended.
    """
    known = values.value_of(lengths)
    if known is None:
        return None
    samples, steps = (tensor.shape[0], tensor.shape[1]) if batch_first else (tensor.shape[1], tensor.shape[0])
    each: list[int] = known.tolist()
    sizes = [sum(length > step for length in each) for step in range(each[0])]
    places = [(step, sample) for step, size in enumerate(sizes) for sample in range(size)]
    flat = [sample * steps + step if batch_first else step * samples + sample for step, sample in places]
    taken = tensor.reshape(-1, *tensor.shape[2:]).index_select(0, torch.tensor(flat, device=tensor.device))
    return taken, values.real(sizes)


def _pad(
    values: KnownValues, _func: Any, data: Tensor, sizes: Tensor, batch_first: bool, padding: Any, steps: int
) -> Any:
    """Replace `_pad_packed_sequence`, the inverse."""
    known = values.value_of(sizes)
    if known is None:
        return None
    there: list[int] = known.tolist()
    steps, samples = max(steps, len(there)), there[0]
    flat = [step * samples + sample for step, size in enumerate(there) for sample in range(size)]
    empty = data.new_full((steps * samples, *data.shape[1:]), padding)
    padded = empty.index_copy(0, torch.tensor(flat, device=data.device), data)
    padded = padded.view(steps, samples, *data.shape[1:])
    lengths = [sum(sample < size for size in there) for sample in range(samples)]
    return padded.transpose(0, 1) if batch_first else padded, torch.tensor(lengths, device="cpu")


def _ctc(
    values: KnownValues,
    _func: Any,
    scores: Tensor,
    targets: Tensor,
    ends: Any,
    lengths: Any,
    blank: int = 0,
    reduction: int | str = 1,
    zero_infinity: bool = False,
) -> Any:
    """Replace `ctc_loss`, which is made of other operators, with its lengths as numbers."""
    found = [each if isinstance(each, list | tuple) else values.value_of(each) for each in (ends, lengths)]
    if found[0] is None or found[1] is None or scores.dim() != 3:
        return None
    numbers = [[int(number) for number in each] for each in found]
    losses: Tensor = CTC_LOSS(scores, targets.to(torch.int64), *numbers, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, losses.new_zeros(()), losses)
    if reduction in _MEAN:
        return (
            losses / torch.tensor(numbers[1], dtype=losses.dtype, device=losses.device).clamp_min(1)
        ).mean()
    return losses.sum() if reduction in _SUM else losses


_MEAN, _SUM = (1, "mean"), (2, "sum")


def _list(values: KnownValues, _func: Any, tensor: Tensor) -> Any:
    known = values.value_of(tensor)
    return None if known is None else known.tolist()


def _array(values: KnownValues, _func: Any, tensor: Tensor, *_others: Any, **_more: Any) -> Any:
    known = values.value_of(tensor)
    if known is not None and not isinstance(tensor, FakeTensor):
        known.flags.writeable = False  # in eager PyTorch it is the tensor's own memory
    return known


_WAYS: dict[str, Callable[..., Any]] = {
    PACK: _pack,
    PAD_PACKED: _pad,
    "ctc_loss": _ctc,
    "tolist": _list,
    "numpy": _array,
    "__array__": _array,
}


# ── tensors made of lists of others ──────────────────────────────────────────────────────────────────

ASSEMBLES = ("tensor", "as_tensor", "new_tensor")
"""The functions of these names take a list."""


def assembled(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Tensor | None:
    """Return the value that the function returns, None if its list holds no tensor of the trace.

    Of `torch.tensor([a, b + 1, 0.5])` PyTorch reads each number, which the trace has not. The same tensor is
    stacked of them instead, by operators that the trace sees: then no number need be known.
    """
    like, data = (
        (args[0], args[1]) if name == "new_tensor" and len(args) > 1 else (None, args[0] if args else None)
    )
    leaves = _leaves(data) if isinstance(data, list | tuple) else []
    if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
        return None
    if any(isinstance(leaf, Tensor) and leaf.numel() != 1 for leaf in leaves):
        return None  # PyTorch refuses these itself
    dtype = keywords.get("dtype") or _inferred(leaves)
    device = keywords.get("device") or ("cpu" if like is None else like.device)
    with torch.no_grad():
        made = _stacked(data, dtype, torch.device(device))
    return made.requires_grad_(bool(keywords.get("requires_grad")))


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, list | tuple):
        return [leaf for part in data for leaf in _leaves(part)]
    return [data]


def _inferred(leaves: list[Any]) -> torch.dtype:
    """Return the dtype that holds all of them, as PyTorch finds it."""
    kinds = [
        leaf.dtype if isinstance(leaf, Tensor) else torch.tensor(leaf, device="cpu").dtype for leaf in leaves
    ]
    return reduce(torch.promote_types, kinds)


def _stacked(data: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(part, dtype, device) for part in data])
    if isinstance(data, Tensor):
        return data.detach().reshape(()).to(device, dtype)
    return torch.tensor(data, dtype=dtype, device=device)
