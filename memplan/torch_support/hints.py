"""Advice about code that can't be traced, if any is known, found by the line that asks and by what it
says.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class _Hint(NamedTuple):
    """A known reason why code can't be traced.

    file, line: parts of a file's name and of its line, on the way to the error.
    text: part of the error.
    advice: what to do about it; for values that decide, by what they follow from.
    reason: simple words that replace the error's.
    outside: only if no line of the user's is on the way.
    """

    file: str
    line: str
    text: str
    advice: str | Mapping[str, str]
    reason: str = ""
    outside: bool = False


IN_CUDNN = "recurrent layers run as cuDNN's kernels on CUDA, whose memory no trace sees"
CUDNN = "set torch.backends.cudnn.enabled = False before the model runs, then they are PyTorch's own"

OWN_BACKWARD = (
    "a plan has the gradients of its own backward alone. If that is activation checkpointing (unsloth's, "
    "Megatron's, DeepSpeed's, fairscale's), switch it off: the plan recomputes activations itself. Else "
    "compute those gradients by torch.autograd.grad"
)
"""Advice about a backward that the model's code runs."""

SPARSE = (
    "give a COO or CSR matrix as an input of its own, for torch.sparse.mm with dense tensors; else give its "
    "indices and values as inputs or buffers, and multiply by index_select and index_add: "
    "torch.zeros(rows, width).index_add(0, row, value[:, None] * x.index_select(0, column))"
)
PACKED = (
    "repacks the weight for inference, which this CPU has instructions for (AVX512-BF16): layers before it "
    "get no gradient any more, in eager PyTorch either. Before evaluating, set support_avx512bf16_for_cpu = "
    "False on every bitsandbytes.nn.Linear4bit"
)
"""The reason for a refusal of a 4-bit layer in eval mode, and the way out."""
NESTED = "nested tensors can't be traced: pad instead, and mask the loss"

NO_FAKE_KERNEL = "has no kernel for fake tensors, by which a trace knows the shapes of its results"
"""The reason for a refusal of an operator that PyTorch can't trace."""

WEIGHTS, NUMBERS, CHANCE = "the model's weights", "real numbers of the batch", "random numbers"
"""Origins of values that decide what is computed: the first of these that has a part in them counts."""

_OUTLIERS = (
    "quantise all columns, by llm_int8_threshold=0.0 or layer.state.threshold = 0.0; or, on a CPU, where "
    "training is without outliers, evaluate by the model itself under torch.no_grad()"
)
_LAYERDROP = "layers are dropped by chance: set layerdrop to 0, or layer_dropout"
_BATCHED = 'call model.set_experts_implementation("batched_mm")'
_OPERATOR = (
    "put the native code into an operator: torch.library.custom_op, register_fake, register_autograd; a "
    "Triton kernel: torch.library.triton_op, wrap_triton, register_autograd"
)
_PART = (
    "or leave such code out of the plan: memplan.optimize_module plans the network, and the loss stays eager "
    "PyTorch's"
)
_PICKED = {
    WEIGHTS: "compute all rows and choose by torch.where, or multiply by zeros and ones; give each expert a "
    f"fixed number of rows by topk; {_PART}",
    NUMBERS: f"give the mask or the indices as an input or a target, of bits or whole numbers; {_PART}",
    CHANCE: f"draw the mask before the step, and give it as an input of bits; {_PART}",
    "": "compute all rows and choose by torch.where, or give the mask as an input or a target, of bits or "
    f"whole numbers; {_PART}",
}
_COUNTED = {
    WEIGHTS: "compute all rows and multiply by zeros and ones, or give each expert a fixed number of rows by "
    f"topk; {_PART}",
    NUMBERS: f"give the sizes as an input or a target of whole numbers; {_PART}",
    CHANCE: f"draw the sizes before the step, and give them as an input of whole numbers; {_PART}",
    "": f"sizes must follow from inputs or targets of whole numbers; {_PART}",
}
_CUSTOM = (
    "put it into an operator, which a plan calls with the values (torch.library.custom_op, register_fake)"
)
_BEFOREHAND = (
    f"{_CUSTOM}; or do it before the iteration, and give what comes of it as an input or a target: a "
    "matching of predictions with labels follows from a forward under torch.no_grad()"
)
_ASKED = {
    WEIGHTS: f"use torch.where, or {_CUSTOM}; {_PART}",
    NUMBERS: "use torch.where, or give what is decided as an input or a target, of bits or whole numbers; "
    f"{_PART}",
    CHANCE: f"use torch.where, or draw before the step and give what comes of it as an input; {_PART}",
    "": f"use torch.where, or {_CUSTOM}; {_PART}",
}
_FAKE_KERNEL = (
    "give it one: @torch.library.register_fake(…) over a function that returns empty tensors of the results' "
    "shapes"
)
_OTHER_CLASS = "in a trace they are ordinary tensors: give what the class adds as inputs of their own"
_SPLINES = (
    "nflows' splines pick rows by the values: use one that computes all rows and chooses by torch.where, "
    "like zuko.flows.NSF"
)
_BY_SCORES = (
    "which nodes are kept depends on weights: pool by clusters that are known beforehand, an input of whole "
    "numbers, or train this model with eager PyTorch"
)
_DROPPED_EDGES = (
    "drop edges before the step, or multiply their messages by a mask drawn by torch.rand, as an edge weight"
)
_REDUCER = (
    "which losses count depends on weights: give the loss reducer=reducers.MeanReducer(), which takes the "
    "mean of all"
)
_OF_CLASS, _MAKES = "uses a tensor of a class of its own", "makes a tensor of a class of its own"
_OWN_CLASS = "make it a buffer, or an ordinary tensor by as_subclass(torch.Tensor)"
_ARGUMENTS = "inputs are what forward takes; what the loss function alone takes goes in targets="
_LABELS = (
    "without targets= a loss function of two arguments is given the batch: give the labels as targets=y, to "
    "the step too, step(x, targets=y)"
)
_LEAF = (
    "for derivatives with respect to an input, make it a leaf in forward: x = x.detach().requires_grad_(True)"
)
_FUNCTIONS = "use torch.where, or branch in Python"

# The first that fits is taken.
_HINTS = (
    _Hint("", "layerdrop", "", _LAYERDROP),
    _Hint("", "skip_the_layer", "", _LAYERDROP),
    _Hint("", "layer_dropout", "", _LAYERDROP),
    _Hint("", "dropout_layers", "", _LAYERDROP),
    _Hint("", "mask_along_axis", "", "masks of iid_masks=True are tensors; or mask batches before the step"),
    _Hint("", "warn_if_padding_and_no_attention_mask", "", "give it an attention_mask"),
    _Hint("torch/distributions", "", "", "make distributions without validate_args=True"),
    _Hint("", "grouped_mm", "", _BATCHED),
    _Hint("", "", "grouped_mm", _BATCHED),
    _Hint("torch_geometric", "self.select(", "", _BY_SCORES),
    _Hint("graph_unet.py", "augment_adj", "", _BY_SCORES, "multiplies sparse matrices"),
    _Hint("torch_geometric/nn/pool", "", "", _BY_SCORES),
    _Hint("torch_geometric/utils/dropout.py", "", "", _DROPPED_EDGES),
    _Hint("kornia/augmentation", "", "", "augment batches before the step, under torch.no_grad()"),
    _Hint("pytorch_metric_learning/reducers", "", "", _REDUCER),
    _Hint(
        "torch_geometric", "", "ynamicOutputShape", "edges must be an input, of whole numbers, or a buffer"
    ),
    _Hint("nflows/transforms/splines", "", "", _SPLINES),
    _Hint("", "", "compressed tensor instance", SPARSE, "makes a sparse tensor"),
    _Hint(
        "torchvision/models/detection",
        "",
        "",
        "sizes and boxes are chosen by chance and by real numbers: plan the backbone alone",
    ),
    _Hint(
        "",
        "pack_padded_sequence",
        "",
        "the lengths of a packed sequence must be an input, of whole numbers: else pad, and mask the loss",
    ),
    _Hint("", "", "ctc_loss", "the lengths of a CTC loss must be inputs or targets, of whole numbers"),
    _Hint("", "", "shape_env", NESTED),
    _Hint(
        "",
        "",
        "match the broadcast shape",
        "where the first iteration shapes buffers (observers), run it before",
    ),
    _Hint("", "", "Checkpointing is not compatible with .grad", OWN_BACKWARD, "runs a backward of its own"),
    _Hint("", "", NO_FAKE_KERNEL, _FAKE_KERNEL),
    _Hint("", "", "no fake impl registered", _FAKE_KERNEL, f"calls an operator that {NO_FAKE_KERNEL}"),
    _Hint("", "", "'target' (position 2) must be Tensor, not", _LABELS),
    _Hint("", "", "'FakeTensor' object has no attribute", _OTHER_CLASS),
    _Hint("", "", "on types that implement __torch_function__", _OWN_CLASS, _OF_CLASS),
    _Hint("", "", "'FakeTensor' and '", _OWN_CLASS, _OF_CLASS),
    _Hint("", "", "' and 'FakeTensor'", _OWN_CLASS, _OF_CLASS),
    _Hint("", "", "Creating a new Tensor subclass", "compute with torch.Tensor in forward and loss", _MAKES),
    _Hint("torch/nn/modules/rnn", "", "Cannot access data pointer", CUDNN, IN_CUDNN),
    _Hint("", "", "Cannot access data pointer", _OPERATOR, "takes the address of a tensor (data_ptr)"),
    _Hint("", "", "0 active drivers", _OPERATOR, "launches a Triton kernel, which a trace can't see"),
    _Hint(
        "",
        "",
        "its data is not allocated yet",
        "use torch.stack or torch.tensor for a list of tensors, not torch.FloatTensor and its like",
        "reads the values of a tensor in native code",
    ),
    _Hint("", "", ".numpy() is not supported", _BEFOREHAND, "hands the values of a tensor to NumPy"),
    _Hint(
        "",
        "",
        "passed to FakeTensor.__format__",
        "write it after the step, from return_outputs=",
        "puts the value of a tensor into a text",
    ),
    _Hint(
        "",
        "",
        "found at least two devices, meta and",
        "if it is torch.func.hessian, use jacrev(jacrev(f)) in its place",
        "PyTorch can't trace a forward-mode derivative of a derivative",
    ),
    _Hint("", "", "forward() takes", _ARGUMENTS, outside=True),
    _Hint("", "", "forward() missing", _ARGUMENTS, outside=True),
    _Hint("bitsandbytes", "", "int8_vectorwise_quant", _OUTLIERS, "picks columns by the values of tensors"),
    _Hint("", "", "aten.nonzero", _PICKED),
    _Hint("", "", "aten.bincount", _COUNTED),
    _Hint("", "", "aten.repeat_interleave", _COUNTED),
    _Hint("", "", "unique", _COUNTED),
    _Hint("", "", "higher_order", _FUNCTIONS),
    _Hint("", "", "HigherOrder", _FUNCTIONS),
    _Hint("", "", "DataDependentOutputException", _ASKED),
    _Hint("", "", "does not require grad", _LEAF),
    _Hint("", "", "appears to not have been used in the graph", _LEAF),
)


def hint(
    frames: Sequence[traceback.FrameSummary], text: str, *, outside: bool = False, origin: str = ""
) -> tuple[str, str]:
    """Return `; advice`, and the reason in simple words; empty if nothing is known.

    outside: no line of the user's is among the frames.
    origin: what the values follow from that the code asks for, "" if that is not known.
    """
    for one in _HINTS:
        anywhere = not one.file and not one.line
        on_the_way = anywhere or any(
            one.file in frame.filename and one.line in (frame.line or "") for frame in frames
        )
        if on_the_way and one.text in text and (outside or not one.outside):
            advice = one.advice if isinstance(one.advice, str) else one.advice[origin]
            return f"; {advice}", one.reason
    return "", ""
