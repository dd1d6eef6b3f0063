"""Batches padded to a few lengths, so that a few plans serve all.

Whatever a model and its loss ignore may be padded: tokens after the end with an attention mask of 0, labels
of -100. The caller declares this by the padding values; `check_ignored` compares with eager PyTorch whether
it holds. Then the mathematics is that of the unpadded batch, but not the bits: other shapes have other
kernels, which sum in another order.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import sqrt
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...graphs.errors import DifferenceError, InputError, MismatchError
from ...guards.unchanged import unchanged
from ...model.iteration import Inputs, Iteration, tensors_in, with_tensors
from ...profiling.compare.eager import run_eager
from ...steps.execute import IterationResult
from ...torch_support.out_of_memory import is_out_of_memory
from ...torch_support.torch_modules import BATCH_NORM_MODULES
from ...torch_support.torch_trees import tensors_among
from ...torch_support.unsupported import warn_user


class Pad(NamedTuple):
    """Padding of one input.

    value: the element added along this dimension.
    group: inputs of one group have one length, that of their own batch.
    left: added at the beginning, not at the end.
    """

    value: float
    dimension: int = 1
    group: str = ""
    left: bool = False


Lengths = Mapping[str, int]
"""Length of the inputs of each group."""


class Buckets(NamedTuple):
    """Lengths to which inputs are padded.

    pads: padding by the name of the input.
    sizes: the lengths, ascending.
    """

    pads: Mapping[str, Pad]
    sizes: tuple[int, ...]

    def options(self, inputs: Inputs, lengths: Lengths | None = None) -> list[Inputs]:
        """Return the inputs padded to each length that they fit in, the shortest first.

        Those of a group that fits in none stay as they are.

        lengths: those that are to fit, the inputs' own by default.
        """
        if lengths is None:
            lengths = self.lengths(inputs)
        fitting = [[size for size in self.sizes if size >= one] or [one] for one in lengths.values()]
        every = sorted(product(*fitting), key=lambda sizes: (sum(sizes), sizes))
        return [self.resized(inputs, dict(zip(lengths, sizes, strict=True))) for sizes in every]

    def largest(self, inputs: Inputs) -> Inputs:
        return self.options(inputs)[-1]

    def lengths(self, inputs: Inputs) -> Lengths:
        """Return the length of the padded inputs, by group.

        Raises MismatchError if they differ in one.
        """
        groups: dict[str, dict[str, int]] = {}
        for name, tensor in self._padded(inputs).items():
            dimension, group = self.pads[name].dimension, self.pads[name].group
            if dimension >= tensor.dim():
                raise MismatchError(f"input {name} has no dimension {dimension} to pad: {list(tensor.shape)}")
            groups.setdefault(group, {})[name] = tensor.shape[dimension]
        for lengths in groups.values():
            if len(set(lengths.values())) > 1:
                found = ", ".join(f"{name} is {length} long" for name, length in lengths.items())
                raise MismatchError(f"{found}: what is padded together is of one length")
        return {group: next(iter(lengths.values())) for group, lengths in groups.items()}

    def resized(self, inputs: Inputs, lengths: Lengths) -> Inputs:
        """Return the inputs cut or padded to these lengths."""
        padded = self._padded(inputs)
        resized = {x: _resized(t, self.pads[x], lengths[self.pads[x].group]) for x, t in padded.items()}
        return with_tensors(inputs, tensors_in(inputs) | resized)

    def _padded(self, inputs: Inputs) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors_in(inputs).items() if name in self.pads}


def parse_buckets(pad_values: Any, pad_to_lengths: Any, inputs: Inputs) -> Buckets | None:
    """Return the lengths and values of padding, None without these options. Raise InputError, one line.

    inputs: an example batch.
    """
    if pad_values is None and pad_to_lengths is None:
        return None
    if not isinstance(pad_values, Mapping) or not pad_values or pad_to_lengths is None:
        raise InputError(
            "pad_values and pad_to_lengths go together: pad_values={'input_ids': 0, …}, "
            "pad_to_lengths=(128, 256)"
        )
    pads: dict[str, Pad] = {}
    for name, given in cast("Mapping[Any, Any]", pad_values).items():
        parts = cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
        numbers = len(parts) in (1, 2) and all(isinstance(part, int | float) for part in parts)
        if isinstance(given, Pad):
            pads[str(name)] = given
            continue
        if not numbers or (len(parts) == 2 and (type(parts[1]) is not int or parts[1] < 0)):
            raise InputError(f"pad_values[{name!r}] is {given!r}: give a value, or a value and a dimension")
        pads[str(name)] = Pad(*parts)
    sizes: tuple[Any, ...] = (pad_to_lengths,)
    if isinstance(pad_to_lengths, tuple | list | range):
        sizes = tuple(cast("Sequence[Any]", pad_to_lengths))
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise InputError(
            f"pad_to_lengths={pad_to_lengths!r}: give the lengths that batches are padded to, 1 or more"
        )
    there = tensors_in(inputs)
    if unknown := [name for name in pads if name not in there]:
        raise InputError(
            f"pad_values names {unknown[0]}, which is not an input: there are {', '.join(there)}"
        )
    return Buckets(pads, tuple(sorted(set(sizes))))


def check_ignored(iteration: Iteration, buckets: Buckets) -> None:
    """Run eager PyTorch on the example batch unpadded and padded, and compare loss and gradients.

    A batch that needs no padding is first cut by a quarter. Dropout is off, since the two runs draw different
    numbers. Loss and gradients (by their norm) may differ by the square root of the coarsest dtype's
    rounding: 0.03% in float32, 9% in bfloat16. Weights, buffers and random states are restored. Raises
    DifferenceError.
    """
    lengths = buckets.lengths(iteration.inputs)
    if not lengths or max(lengths.values()) > buckets.sizes[-1]:
        return
    sizes = {group: next(size for size in buckets.sizes if size >= one) for group, one in lengths.items()}
    short = {group: one if one < sizes[group] else max(1, one * 3 // 4) for group, one in lengths.items()}
    alone = iteration._replace(updates=None, processes=None, outputs=False)
    forms = [buckets.resized(iteration.inputs, short)]
    forms.append(buckets.resized(forms[0], sizes))
    device = next(iter(tensors_in(iteration.inputs).values())).device
    try:
        with unchanged(alone, device), _without_dropout(alone.module), _dtypes_of(alone.module) as dtypes:
            baseline, padded = (run_eager(alone._replace(inputs=form)) for form in forms)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        warn_user("padded batches are not compared with unpadded ones: there is not memory enough")
        return
    tolerance = sqrt(max(torch.finfo(dtype).eps for dtype in dtypes))
    for what, difference in _differences(baseline, padded).items():
        if not difference <= tolerance:  # not `>`: a NaN is a difference too
            raise DifferenceError(
                f"padding is not ignored: {what} of {_text(short)} padded to {_text(sizes)} differ by "
                f"{difference:.2g} of eager PyTorch's, more than {tolerance:.2g}: pad with what model and "
                "loss leave out"
            )


def _text(lengths: Lengths) -> str:
    return " and ".join(map(str, lengths.values()))


def _resized(tensor: Tensor, pad: Pad, size: int) -> Tensor:
    missing = size - tensor.shape[pad.dimension]
    if missing <= 0:  # a part of a longer tensor is to have the strides of one that was padded
        return tensor.narrow(pad.dimension, -missing if pad.left else 0, size).contiguous()
    shape = list(tensor.shape)
    shape[pad.dimension] = missing
    both = [tensor, tensor.new_full(shape, pad.value)]
    return torch.cat(both[::-1] if pad.left else both, pad.dimension)


def _differences(baseline: IterationResult, padded: IterationResult) -> dict[str, float]:
    """Return the relative differences of the losses and of all gradients together."""
    assert baseline.loss is not None
    assert padded.loss is not None
    loss, other = float(baseline.loss), float(padded.loss)
    # A loss of 0 is compared absolutely.
    found = {"losses": abs(loss - other) / (abs(loss) or 1.0)}
    if baseline.gradients.keys() == padded.gradients.keys():
        pairs = [(gradient, padded.gradients[name]) for name, gradient in baseline.gradients.items()]
        apart = sqrt(sum(float((one.double() - two.double()).square().sum()) for one, two in pairs))
        norm = sqrt(sum(float(one.double().square().sum()) for one, _two in pairs))
        found["gradients"] = apart / (norm or 1.0)
    return found


@contextmanager
def _dtypes_of(module: nn.Module) -> Generator[set[torch.dtype]]:
    """Collect the dtypes of parameters and, until the block ends, of what submodules return: an autocast may
    be inside of forward.
    """
    found = {p.dtype for p in module.parameters() if p.dtype.is_floating_point}

    def note(_part: nn.Module, _arguments: Any, output: Any) -> None:
        found.update(each.dtype for each in tensors_among(output) if each.dtype.is_floating_point)

    handles = [part.register_forward_hook(note) for part in module.modules()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_dropout(module: nn.Module) -> Generator[None]:
    """Put the module in eval mode, except batch norms and recurrent layers, until the block ends.

    Padding may reach a batch norm only in train mode, and on some devices recurrent layers have a backward
    only in train mode.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    for part, mode in modes:
        recurrent = isinstance(part, nn.RNNBase) and not part.dropout
        if recurrent or isinstance(part, BATCH_NORM_MODULES):
            part.training = mode
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
