"""What to do about code that can't be traced, where it is known: by the line that asks, and what it says."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import NamedTuple

from .torch_internals import ASKS_FOR_A_NUMBER


class _Hint(NamedTuple):
    """file, line: parts of a file's name and of its line, on the way to the error. text: part of its own."""

    file: str
    line: str
    text: str
    advice: str


_LAYERDROP = "layers are dropped by chance: set layerdrop to 0"
_HINTS = (
    _Hint("", "layerdrop", "", _LAYERDROP),
    _Hint("", "skip_the_layer", "", _LAYERDROP),
    _Hint("", "warn_if_padding_and_no_attention_mask", "", "give it an attention_mask"),
    _Hint("distributions", "", "", "make distributions without validate_args=True"),
    _Hint("", "grouped_mm", "", 'call model.set_experts_implementation("batched_mm")'),
    _Hint("", "", "grouped_mm", 'call model.set_experts_implementation("batched_mm")'),
    _Hint(
        "torch_geometric", "self.select(", "", "which nodes are kept depends on weights: use plain PyTorch"
    ),
    _Hint("torch_geometric", "", "", "edges must be an input, of whole numbers, or a buffer"),
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
    _Hint("", "", "shape_env", "nested tensors can't be traced: pad instead, and mask the loss"),
    _Hint(
        "",
        "",
        "match the broadcast shape",
        "where the first iteration shapes buffers (observers), run it before",
    ),
    _Hint(
        "",
        "",
        "aten.nonzero",
        "where a mask picks rows, make it an input, of bits or whole numbers",
    ),
    _Hint(
        "",
        "",
        "higher_order",
        "use torch.where, or branch in Python",
    ),
    _Hint(
        "",
        "",
        "HigherOrder",
        "use torch.where, or branch in Python",
    ),
    _Hint(
        "",
        "",
        str(ASKS_FOR_A_NUMBER),
        "where it follows from weights, real numbers or chance, use torch.where, or leave that part to plain "
        "PyTorch",
    ),
)


def hint(frames: Iterable[traceback.FrameSummary], text: str) -> str:
    """` (…)`; empty where nothing is known."""
    frames = list(frames)
    for one in _HINTS:
        anywhere = not one.file and not one.line
        on_the_way = anywhere or any(
            one.file in frame.filename and one.line in (frame.line or "") for frame in frames
        )
        if on_the_way and one.text in text:
            return f"; {one.advice}"
    return ""
