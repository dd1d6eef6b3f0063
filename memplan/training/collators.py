"""What padding fills in, as the collator of a transformers.Trainer would: with `pad_to_lengths` alone.

Inputs are known by their names, which are those of tokenizers and models:

    input_ids, decoder_input_ids, completion_ids, …     the tokenizer's padding token
    attention_mask, completion_mask, …                  0
    token_type_ids                                      the tokenizer's padding type
    labels                                              the collator's ignored label, -100 by default
    old_per_token_logps, …                              0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graphs.errors import InputError
from ..model.iteration import tensors_in
from .plans.buckets import Pad

_IDS = ("input_ids", "prompt_ids", "completion_ids")
_TYPES, _MASK, _LABELS, _LOG_PROBABILITIES = "token_type_ids", "mask", "labels", "per_token_logps"
_PROMPTS, _COMPLETIONS, _POSITIONS = "prompt_", "completion_", "position_ids"
_TARGETS = "decoder_"
"""What names begin with that are as long as the labels of a model with encoder and decoder."""

_IGNORED = -100
"""Label that PyTorch's losses leave out."""


def collated_pads(trainer: Any, inputs: Mapping[str, Any]) -> dict[str, Pad]:
    """Return the padding by name of a batch that the trainer's collator has made. Raises InputError.

    inputs: the batch.
    """
    collator = trainer.data_collator
    token = _first(collator, trainer, "pad_token_id")
    if token is None:
        raise _unknown(f"{type(collator).__name__} does not tell its padding token")
    # TRL's pad on the right whatever the tokenizer does, but for prompts, which end where answers begin.
    of_trl = str(getattr(collator, "__module__", "")).partition(".")[0] == "trl"
    left = not of_trl and _first(collator, trainer, "padding_side") == "left"
    values: dict[str, Any] = {
        **dict.fromkeys(_IDS, token),
        _TYPES: _first(collator, trainer, "pad_token_type_id") or 0,
        _MASK: 0,
        _LABELS: _IGNORED if (label := getattr(collator, "label_pad_token_id", None)) is None else label,
    }
    whole = {name: tensor for name, tensor in tensors_in(dict(inputs)).items() if tensor.dim() > 1}
    shapes = {name: tensor.shape for name, tensor in whole.items() if name.endswith(_IDS)}
    if not shapes:
        raise _unknown(f"a batch of {type(collator).__name__} has no {_IDS[0]}")
    if _POSITIONS in whole:
        raise InputError(
            f"{type(collator).__name__} packs texts into one row with {_POSITIONS}, which is not padded: "
            "leave pad_to_lengths out, each length has a plan then"
        )
    apart = bool(getattr(getattr(trainer.model, "config", None), "is_encoder_decoder", False))
    groups = {*map(_prefix, shapes), *([_TARGETS] if apart else [])}
    pads: dict[str, Pad] = {}
    for name, tensor in whole.items():
        kind = next((kind for kind in values if name.endswith(kind)), None)
        # Floats are no tokens: `labels` of a regression, for example.
        kind = None if tensor.is_floating_point() else kind
        tokens = tensor.shape in shapes.values()
        # One prefix may begin with another.
        group = max((each for each in groups if name.startswith(each)), key=len, default="")
        if name == _LABELS and apart:
            group = _TARGETS
        if kind is not None and (tokens or kind != _LABELS or apart):
            side = left or name.startswith(_PROMPTS)
            pads[name] = Pad(values[kind], tensor.dim() - 1, group, left=side)
        elif tokens and name.endswith(_LOG_PROBABILITIES):  # of completions; masked as these are
            pads[name] = Pad(0.0, tensor.dim() - 1, _COMPLETIONS if _COMPLETIONS in groups else "")
        elif kind is None and tokens:
            raise _unknown(f"{type(collator).__name__} makes {name}, whose padding is not known")
    return pads


def _prefix(ids: str) -> str:
    """Return what begins the names of inputs that are as long as these tokens: "decoder_", "chosen_"."""
    return ids.removesuffix(_IDS[0] if ids.endswith(_IDS[0]) else "ids")


def _first(collator: Any, trainer: Any, name: str) -> Any:
    """Return an attribute of the collator, or else of a tokenizer of its or of the trainer's."""
    makers = [getattr(collator, each, None) for each in ("tokenizer", "processing_class", "processor")]
    makers.append(getattr(trainer, "processing_class", None))
    tokenizers = [getattr(one, "tokenizer", one) for one in makers]
    found = (getattr(place, name, None) for place in (collator, *tokenizers))
    return next((one for one in found if one is not None), None)


def _unknown(why: str) -> InputError:
    return InputError(
        f"{why}: give pad_values={{'input_ids': 0, 'attention_mask': 0, 'labels': -100}} with pad_to_lengths"
    )
