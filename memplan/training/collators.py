"""What padding fills in, as the collator of a transformers.Trainer would: with `pad_to_lengths` alone.

Inputs are known by their names, which are those of tokenizers and models:

    input_ids, decoder_input_ids, chosen_input_ids, …   the tokenizer's padding token
    attention_mask, completion_mask, …                  0
    token_type_ids                                      the tokenizer's padding type
    labels                                              the collator's ignored label, -100 by default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graphs.errors import InputError
from ..model.iteration import tensors_in
from .plans.buckets import Pad

_IDS, _TYPES, _MASK, _LABELS = "input_ids", "token_type_ids", "mask", "labels"
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
    side = _first(collator, trainer, "padding_side") or "right"
    values = {
        _IDS: token,
        _TYPES: _first(collator, trainer, "pad_token_type_id") or 0,
        _MASK: 0,
        _LABELS: _IGNORED if (label := getattr(collator, "label_pad_token_id", None)) is None else label,
    }
    whole = {x: t for x, t in tensors_in(dict(inputs)).items() if t.dim() > 1 and not t.is_floating_point()}
    shapes = [tensor.shape for name, tensor in whole.items() if name.endswith(_IDS)]
    if not shapes:
        raise _unknown(f"a batch of {type(collator).__name__} has no {_IDS}")
    apart = bool(getattr(getattr(trainer.model, "config", None), "is_encoder_decoder", False))
    pads: dict[str, Pad] = {}
    for name, tensor in whole.items():
        kind = next((kind for kind in values if name.endswith(kind)), None)
        tokens = tensor.shape in shapes
        if kind is not None and (tokens or kind != _LABELS or apart):
            # Prompts end where answers begin: TRL pads them on the left, whatever the tokenizer does.
            left = side == "left" or name.startswith("prompt_")
            group = _TARGETS if name == _LABELS and apart else _prefix(name)
            pads[name] = Pad(values[kind], tensor.dim() - 1, group, left=left)
        elif kind is None and tokens:
            raise _unknown(f"{type(collator).__name__} makes {name}, whose padding is not known")
    return pads


def _prefix(name: str) -> str:
    """Return what is common to the names of inputs that have one length: "decoder_", "chosen_"."""
    kinds = (_IDS, _TYPES, f"attention_{_MASK}", _LABELS)
    return next((name.removesuffix(kind) for kind in kinds if name.endswith(kind)), "")


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
