"""Owners of a recording's peak: by kind, as far as the stacks tell, by line of the user's code, by module.

    optimizer     its code allocated the block; what stays are its states
    backward      autograd's engine did; recomputed activations within a checkpoint
    weights       a module moved, made or loaded them
    activations   a forward or an operator did
    before        the block was there before the recording began, and nothing says what it is

On a GPU autograd has a thread of its own, without Python frames: if other blocks have frames, those without
are backward's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import NamedTuple

from .recording import Block, Frame, Recording

WEIGHTS, STATES, ACTIVATIONS = "weights and buffers", "optimizer states", "activations"
RECOMPUTED, BACKWARD, STEP = "recomputed activations", "gradients and backward", "the optimizer's step"
BEFORE, UNKNOWN = "there before the recording", "unknown"
PARAMETERS, OUTPUTS, CONSTANTS = "other parameters of the program", "outputs", "constants"
TEMPORARIES, GAPS = "other temporaries", "gaps in the arena"
OF_PROGRAM = (PARAMETERS, OUTPUTS, CONSTANTS, TEMPORARIES, GAPS)
"""Kinds of a program of XLA alone."""
KINDS = (WEIGHTS, STATES, ACTIVATIONS, RECOMPUTED, BACKWARD, STEP, *OF_PROGRAM, BEFORE, UNKNOWN)
RECOMPUTABLE = (ACTIVATIONS, RECOMPUTED)
OFFLOADABLE = (*RECOMPUTABLE, STATES, WEIGHTS)

_MOVES = ("_apply", "to", "cuda", "float", "half", "bfloat16", "convert", "_load_from_state_dict")
_LOADS = ("load_state_dict", "from_pretrained", "reset_parameters", "_load_state_dict_into_model")
_MODULE = "nn.Module: "
_INSTALLED = ("site-packages", "dist-packages")


class Owner(NamedTuple):
    """Blocks of the peak that have a name in common."""

    name: str
    size: int
    blocks: int
    kind: str


def kinds(recording: Recording) -> list[Owner]:
    """Return the peak's bytes by kind, in the order of KINDS."""
    blocks = [*recording.at_peak()]
    kind = _kind_of(recording)
    found = _grouped(blocks, kind, kind)
    return sorted(found, key=lambda one: KINDS.index(one.name))


def lines(recording: Recording) -> list[Owner]:
    """Return the peak's bytes by line of the user's code, or of the library that allocates; most first."""
    kind = _kind_of(recording)
    return _grouped(recording.at_peak(), _line, kind)


def modules(recording: Recording) -> list[Owner]:
    """Return the peak's bytes by module, those that have one: profiles name them; most first."""
    return [one for one in _grouped(recording.at_peak(), _module, _kind_of(recording)) if one.name]


def _grouped(
    blocks: Iterable[Block], name: Callable[[Block], str], kind: Callable[[Block], str]
) -> list[Owner]:
    sizes, counts, of_kind = dict[str, int](), dict[str, int](), dict[str, dict[str, int]]()
    for one in blocks:
        key, what = name(one), kind(one)
        sizes[key] = sizes.get(key, 0) + one.size
        counts[key] = counts.get(key, 0) + 1
        by_kind = of_kind.setdefault(key, {})
        by_kind[what] = by_kind.get(what, 0) + one.size
    owners = (
        Owner(key, size, counts[key], max(of_kind[key], key=of_kind[key].__getitem__))
        for key, size in sizes.items()
    )
    return sorted(owners, key=lambda one: -one.size)


def _kind_of(recording: Recording) -> Callable[[Block], str]:
    """Return a function of a block's kind."""
    has_frames = any(one.frames and one.begin >= 0 for one in recording.blocks)

    def kind(block: Block) -> str:
        if block.kind:
            return block.kind
        if not block.frames:
            if block.begin < 0:
                return BEFORE
            return BACKWARD if has_frames else UNKNOWN
        return _kind(block)

    return kind


def _kind(block: Block) -> str:
    frames = block.frames
    if any(_is_optimizer(frame) for frame in frames):
        return STATES if block.end is None else STEP
    if any(_is_backward(frame) for frame in frames):
        checkpointed = any(frame.file.endswith("utils/checkpoint.py") for frame in frames)
        return RECOMPUTED if checkpointed else BACKWARD
    if any(_is_of_weights(frame) for frame in frames):
        return WEIGHTS
    if any(_is_forward(frame) for frame in frames):
        return ACTIVATIONS
    return BEFORE if block.begin < 0 else UNKNOWN


def _is_optimizer(frame: Frame) -> bool:
    return "/optim/" in frame.file or frame.name.startswith("Optimizer.step#") or frame.name == "_init_group"


def _is_backward(frame: Frame) -> bool:
    if frame.name == "backward":
        return _ends(frame, "torch/_tensor.py") or _ends(frame, "autograd/__init__.py")
    return (
        frame.name.startswith(("autograd::engine", "torch::autograd::Engine"))
        or "engine_run_back" in frame.name
    )


def _is_of_weights(frame: Frame) -> bool:
    if frame.name in _LOADS:
        return True
    if frame.name == "__init__":
        return "/nn/modules/" in frame.file
    return frame.name in _MOVES and _ends(frame, "nn/modules/module.py")


def _is_forward(frame: Frame) -> bool:
    if frame.name in ("forward", "_call_impl", "_wrapped_call_impl"):
        return True
    return frame.name.startswith(("aten::", _MODULE)) or _ends(frame, "nn/functional.py")


def _ends(frame: Frame, path: str) -> bool:
    return frame.file.endswith(path)


def _line(block: Block) -> str:
    """Return the innermost line of the user's own code, else of an installed package other than torch."""
    in_python = [frame for frame in block.frames if frame.file.endswith(".py")]
    packages = [frame for frame in in_python if "torch" not in PurePath(frame.file).parts]
    own = [frame for frame in packages if not {*PurePath(frame.file).parts} & {*_INSTALLED}]
    frame = next(iter(own or packages), None)
    if frame is not None:
        return f"{PurePath(frame.file).name}:{frame.line} {frame.name}"
    operator = next((frame.name for frame in block.frames if frame.name.startswith("aten::")), None)
    unknown = "(before the recording)" if block.begin < 0 else "(no Python code in the stack)"
    return operator or block.name or unknown


def _module(block: Block) -> str:
    names = (frame.name for frame in block.frames if frame.name.startswith(_MODULE))
    return block.module or next(names, "").removeprefix(_MODULE)
