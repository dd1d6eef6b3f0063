"""Estimated time of one operation on a GPU that is not here: the roofline model.

    compute = FLOPs / (e_c · peak FLOP/s of the type)        memory = bytes / (e_b · bandwidth)
    seconds = (max(compute, memory) + e_s · min(compute, memory)) / kind + kernel

The second term is what a kernel does not hide. For attention and for products in half precision see
efficiency.py.

Reference: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785.

FLOPs of matrix products, convolutions and attention come from torch.utils.flop_counter and from the formulas
below for what it lacks or miscounts; everything else counts none and is bound by its bytes. Bytes are those
of the distinct elements of all tensor arguments and results: an expanded tensor counts once, a table of
which rows are picked counts as far as it is read.

The efficiencies are fitted to published times of whole iterations (efficiency.py). Expect errors of a factor
of two on one operation, either way; sums over an iteration, and the ratios between operations that a schedule
depends on, are better than that. What a kernel takes in addition to its outputs is another matter:
workspace.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from ...devices.calls.fused import dropout_mask
from ...graphs.graph import Phase
from ...graphs.machines.gpus import Gpu
from ...torch_support.torch_operators import (
    ATTENTION,
    ATTENTION_BACKWARD,
    BATCH_NORMS,
    EFFICIENT_ATTENTION,
    OLD_CONVOLUTION,
    SOFTMAXES,
    conv_flop_count,
    flop_registry,
    schema_of,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)
from ...torch_support.torch_trees import tensors_among
from .efficiency import ATTENTION as ATTENTION_SHARES
from .efficiency import EXPONENTIALS, STARTS, Efficiencies, efficiencies

aten: Any = torch.ops.aten
CONVOLUTIONS = {aten.convolution, OLD_CONVOLUTION, aten.convolution_backward}
PICKS_ROWS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten.take}
MAKES_ROOM = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
LIKE = {aten.full_like, aten.ones_like, aten.zeros_like, aten.rand_like, aten.randn_like, dropout_mask}
READS_LAYOUT = {*LIKE, aten.new_full, aten.new_ones, aten.new_zeros}
KINDS = {
    "product": (aten.mm, aten.addmm),
    "batched product": (aten.bmm, aten.baddbmm),
    "efficient attention": EFFICIENT_ATTENTION,
    "attention": tuple(one for one in (*ATTENTION, *ATTENTION_BACKWARD) if one not in EFFICIENT_ATTENTION),
    "batch norm": (
        aten.cudnn_batch_norm,
        aten.cudnn_batch_norm_backward,
        *BATCH_NORMS,
        aten.native_batch_norm,
        aten.native_batch_norm_backward,
    ),
    "norm": (
        aten.native_layer_norm,
        aten.native_layer_norm_backward,
        aten.native_group_norm,
        aten.native_group_norm_backward,
        *SOFTMAXES,
    ),
}
PRODUCTS = "product", "batched product"
CONVOLUTION_KINDS = (
    "convolution",
    "convolution, channels first",
    "convolution, channels last",
    "grouped convolution, channels first",
    "grouped convolution, channels last",
    "depthwise convolution, channels first",
    "depthwise convolution, channels last",
)
DEPTHWISE = "depthwise convolution"
GROUPED = "grouped convolution, channels first"
"""Its inputs are packed for tensor cores, group by group: its share is of the bandwidth alone."""
WITHOUT_TENSOR_CORES = CONVOLUTION_KINDS[-3:]
"""Convolutions in groups for which there is no kernel on tensor cores: they run on the units of float32, to
whose rate their shares are relative."""
KIND_OF = {operator: kind for kind, operators in KINDS.items() for operator in operators}


class Work(NamedTuple):
    """Arithmetic and traffic of an operation.

    flops: floating-point operations.
    bytes: read and written.
    rate: the field of `Gpu` that bounds its FLOPs.
    kind: in efficiencies.yaml.
    scores: of a flash attention, each of which takes an exponential; keys: of them for a query, on average.
    """

    flops: int
    bytes: int
    rate: str
    kind: str = "pointwise"
    scores: int = 0
    keys: int = 0


def seconds(work: Work, gpu: Gpu, fitted: Efficiencies | None = None) -> float:
    """Return the roofline's bound by these efficiencies, and what a kernel takes at least.

    fitted: None for those of efficiencies.yaml.
    """
    reached = fitted or efficiencies()
    kind, rate = kind_and_rate(work, gpu)
    share, memory = reached.kinds[kind], work.bytes / (reached.bandwidth * gpu.bandwidth)
    if not work.flops:
        return memory / share + reached.kernel
    # Flash kernels overlap computing and moving: no serial share.
    if work.scores:
        return max(attention_seconds(work, gpu, getattr(gpu, rate)), memory) / share + reached.kernel
    if kind in PRODUCTS and (of_products := reached.of_products(gpu, rate)) is not None:
        compute = work.flops / (of_products * getattr(gpu, rate))
        return max(compute + reached.unhidden * work.bytes / gpu.bandwidth, memory) / share + reached.kernel
    of_rate = 1.0 if kind in WITHOUT_TENSOR_CORES else reached.of_rate(gpu, rate)
    compute = work.flops / (of_rate * getattr(gpu, rate))
    if kind == GROUPED:
        return compute + memory / share + reached.kernel
    hidden = (1 - reached.serial) * min(compute, memory)
    return (compute + memory - hidden) / share + reached.kernel


def kind_and_rate(work: Work, gpu: Gpu) -> tuple[str, str]:
    """Return the kind and the rate of an operation on a GPU: without a fast path it runs as float32 does."""
    if not work.flops or getattr(gpu, work.rate):
        return work.kind, work.rate
    return "convolution" if work.kind.startswith("convolution, ") else work.kind, "float32"


def attention_seconds(work: Work, gpu: Gpu, rate: float) -> float:
    """Return the seconds in which a flash attention computes. rate: FLOP/s of the data sheet."""
    known = [value for least, value in ATTENTION_SHARES.items() if gpu.capability >= least]
    share = known[-1] if known else next(iter(ATTENTION_SHARES.values()))
    # Sixteen units for exponentials alongside 128 of float32, 64 before GeForce's Ampere.
    units = gpu.float32 / (16 if gpu.capability >= (8, 6) else 8)
    computing = work.flops / (share * rate) + work.scores / (EXPONENTIALS * units)
    return computing * (1 + STARTS / max(work.keys, 1))


def launch_seconds(phase: Phase, kind: str, gpu: Gpu) -> float:
    """Return the seconds that the training thread takes to issue an operation of a kind."""
    return efficiencies().launch_seconds(phase, kind, gpu.capability)


def work_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Work:
    """Return the work of one call. Tensors may be fake: only their layout is read.

    target: an ATen overload.
    """
    operation = getattr(target, "overloadpacket", target)
    inputs, outputs = _tensors((args, kwargs)), _tensors(result)
    # FORMULAS first: flop_registry miscounts some of these.
    formula = FORMULAS.get(operation) or flop_registry.get(operation)
    # Products with `out_dtype` have it where PyTorch's formulas have a shape; it changes no count.
    counted = [value for value in args if not isinstance(value, torch.dtype)]
    flops = int(formula(*counted, **kwargs, out_val=result)) if formula else 0
    rate = _rate(operation, [*inputs, *outputs])
    if operation in CONVOLUTIONS:
        kind = _kind_of_convolution(operation, args, rate)
        if kind in WITHOUT_TENSOR_CORES and rate != "float64":
            rate = "float32"
    else:
        kind = KIND_OF.get(operation, "product" if flops else "pointwise")
    scores = _scores(operation, args, flops) if kind == "attention" else (0, 0)
    return Work(flops, _bytes(operation, inputs, outputs), rate, kind, *scores)


def _scores(operation: Any, args: tuple[Any, ...], flops: int) -> tuple[int, int]:
    """Return how many scores an attention's products have, in all and for a query, without those it skips."""
    backward = operation in ATTENTION_BACKWARD
    query, _key, value = args[1:4] if backward else args[:3]
    # Two products forward, one of them of queries; backward five, three of them of queries.
    widths = 3 * query.shape[-1] + 2 * value.shape[-1] if backward else query.shape[-1] + value.shape[-1]
    scores = flops // (2 * widths)
    return scores, scores // query[..., 0].numel()


def _kind_of_convolution(operation: Any, args: tuple[Any, ...], rate: str) -> str:
    """Return the kind: by groups, and by layout on tensor cores, which want channels last."""
    # By aten's schemas: input 0 and groups 8; with the output's gradient first, 1 and 9.
    x, groups = (args[1], args[9]) if operation is aten.convolution_backward else (args[0], args[8])
    # With one channel its stride says nothing.
    layout = "channels last" if x.shape[1] > 1 and x.stride(1) == 1 else "channels first"
    if groups > 1:
        return f"{DEPTHWISE if groups == x.shape[1] else 'grouped convolution'}, {layout}"
    return f"convolution, {layout}" if rate not in ("float32", "float64") else "convolution"


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the elements that a tensor shows, each counted once however often the strides
    repeat it.
    """
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        # Stride 0 repeats one element; a size of 0 leaves none.
        elements *= size if stride or not size else 1
    # Overlapping windows show more elements than their storage has.
    return min(elements * tensor.itemsize, tensor.untyped_storage().nbytes())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors_among(tree)}.values())


def _bytes(operation: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    if operation in MAKES_ROOM:
        return 0
    written = _sum(outputs)
    if operation in READS_LAYOUT:
        return written
    if operation in PICKS_ROWS:
        return min(distinct_bytes(inputs[0]), written) + _sum(inputs[1:]) + written
    return _sum(inputs) + written


def _sum(tensors: Iterable[torch.Tensor]) -> int:
    return sum(map(distinct_bytes, tensors))


def _rate(operation: Any, tensors: list[torch.Tensor]) -> str:
    """Return the field of `Gpu` that bounds the operation's FLOPs.

    float32 runs as TF32 exactly if this PyTorch's settings let cuBLAS or cuDNN do so.
    """
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    if dtype == torch.float32 and operation in CONVOLUTIONS:
        return "tf32" if torch.backends.cudnn.allow_tf32 else "float32"
    if dtype == torch.float32:
        return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    name = str(dtype).removeprefix("torch.")
    return name if name in Gpu.__dataclass_fields__ else "float16"


def _attention(operator: Any) -> Callable[..., int]:
    """Return the formula of an attention's FLOPs; a causal one skips the half of the scores above the
    diagonal.
    """
    causal = _is_causal(operator)

    def flops(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> int:
        whole = sdpa_flop_count(query.shape, key.shape, value.shape)
        return whole // 2 if causal((query, key, value, *rest), options) else whole

    return flops


def _attention_backward(operator: Any) -> Callable[..., int]:
    causal = _is_causal(operator)

    def flops(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> int:
        whole = sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)
        return whole // 2 if causal((grad, query, key, value, *rest), options) else whole

    return flops


def _is_causal(operator: Any) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
    """Return a function of a call's arguments that tells whether it is causal."""
    place = [argument.name for argument in schema_of(operator.default).arguments].index("is_causal")
    return lambda args, kwargs: bool(args[place] if place < len(args) else kwargs.get("is_causal", False))


def _convolution_backward(*args: Any, **_options: Any) -> int:
    """Count the FLOPs: the gradients of input and weight multiply as many pairs as forward does, in groups
    or not.
    """
    grad, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    forward = conv_flop_count(list(x.shape), list(weight.shape), list(grad.shape), transposed)
    # Gradients of input and weight; that of the bias is a sum, which counts no FLOPs.
    return (bool(wanted[0]) + bool(wanted[1])) * forward


FORMULAS: dict[Any, Callable[..., int]] = {
    aten.convolution_backward: _convolution_backward,
    **{operator: _attention(operator) for operator in ATTENTION},
    **{operator: _attention_backward(operator) for operator in ATTENTION_BACKWARD},
}
