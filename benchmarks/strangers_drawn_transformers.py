"""Candidates of transformers: each kind of model in each task that its auto classes list and strangers_* do
not, tiny, with batches as the library's collators make them (lengths, padded labels, masked tokens)."""

from functools import partial

import torch
from memplan.model.iteration import Iteration
from strangers_tiny import BART, GROUPED, IMAGE, tokens

TEXTS, LENGTH, CLASSES = 4, 16, 4
MAPPINGS = {
    "causal": ("CAUSAL_LM", "AutoModelForCausalLM"),
    "masked": ("MASKED_LM", "AutoModelForMaskedLM"),
    "translation": ("SEQ_TO_SEQ_CAUSAL_LM", "AutoModelForSeq2SeqLM"),
    "texts": ("SEQUENCE_CLASSIFICATION", "AutoModelForSequenceClassification"),
    "token classes": ("TOKEN_CLASSIFICATION", "AutoModelForTokenClassification"),
    "answers": ("QUESTION_ANSWERING", "AutoModelForQuestionAnswering"),
    "choices": ("MULTIPLE_CHOICE", "AutoModelForMultipleChoice"),
    "images": ("IMAGE_CLASSIFICATION", "AutoModelForImageClassification"),
    "pixels": ("SEMANTIC_SEGMENTATION", "AutoModelForSemanticSegmentation"),
    "boxes": ("OBJECT_DETECTION", "AutoModelForObjectDetection"),
    "ctc": ("CTC", "AutoModelForCTC"),
    "sounds": ("AUDIO_CLASSIFICATION", "AutoModelForAudioClassification"),
    "image text": ("IMAGE_TEXT_TO_TEXT", "AutoModelForImageTextToText"),
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
}
SPEECH = {
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
VISION = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 16, 32, 32],
    "embed_dim": 32,
    "neck_hidden_sizes": [16, 32, 32, 32],
    "num_queries": 8,
    "encoder_ffn_dim": 32,
    "num_channels": 3,
    "depth": 2,
    "num_hidden_layers": 2,
    "num_labels": CLASSES,
    "num_frames": 4,
    "image_token_id": 60,
    "image_token_index": 60,
    "use_timm_backbone": False,
}
TEXT = {
    "n_layer": 2,
    "n_layers": 2,
    "n_head": 4,
    "n_heads": 4,
    "n_embd": 32,
    "dim": 32,
    "hidden_dim": 64,
    "d_inner": 64,
    "d_head": 8,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 64,
    "d_kv": 8,
    "embedding_size": 32,
    "ffn_dim": 64,
    "sliding_window": 8,
    "attention_window": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "state_size": 8,
    "num_key_value_heads": 2,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 64,
}
SMALL = {**IMAGE, **GROUPED, **BART, **EXPERTS, **SPEECH, **VISION, **TEXT}


def options_of(config_class, depth=0):
    """The options of SMALL that a configuration has, those of the configurations inside it too."""
    known = config_class()
    options = {name: value for name, value in SMALL.items() if hasattr(known, name)}
    for name, value in list(options.items()):
        before = getattr(known, name)
        if isinstance(value, list) and isinstance(before, list | tuple):
            options[name] = (value * len(before))[: len(before)]
        elif isinstance(before, list | tuple) != isinstance(value, list | tuple) and before is not None:
            del options[name]
    for name, inner in (config_class.sub_configs or {}).items():
        if depth < 2 and hasattr(inner, "model_type") and inner.model_type:
            options[name] = options_of(inner, depth + 1)
    return options


def shorter(length=LENGTH, least=5):
    """An attention mask of texts padded on the right; one has the full length, so shapes are equal."""
    lengths = torch.randint(least, length + 1, (TEXTS,))
    lengths[torch.randint(TEXTS, ())] = length
    return (torch.arange(length) < lengths[:, None]).long()


def texts(length=LENGTH):
    ids, mask = tokens(TEXTS, length), shorter(length)
    return {"input_ids": ids.where(mask == 1, 2), "attention_mask": mask}


def ignored(labels, mask):
    return labels.where(mask == 1, -100)


def causal():
    batch = texts()
    return batch | {"labels": ignored(batch["input_ids"], batch["attention_mask"])}


def masked():
    batch = texts()
    picked = (torch.rand(TEXTS, LENGTH) < 0.3) & (batch["attention_mask"] == 1)
    picked[:, 0] = True
    ids = batch["input_ids"]
    return batch | {"input_ids": ids.masked_fill(picked, 3), "labels": ids.where(picked, -100)}


def translation():
    target = texts(8)
    return texts() | {"labels": ignored(target["input_ids"], target["attention_mask"])}


def choices():
    ids, mask = tokens(2, 3, LENGTH), torch.ones(2, 3, LENGTH, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, (2,))}


def answers():
    starts = torch.randint(3, (TEXTS,))
    return texts() | {"start_positions": starts, "end_positions": starts + torch.randint(2, (TEXTS,))}


def boxes(size):
    def one():
        number = int(torch.randint(1, 4, ()))
        sizes = torch.rand(number, 4) * 0.3 + 0.2
        return {"class_labels": torch.randint(CLASSES, (number,)), "boxes": sizes}

    return {"pixel_values": torch.randn(2, 3, size, size), "labels": [one(), one()]}


def ctc():
    length = 400
    mask = shorter(length, 300)
    labels = texts(6)
    return {
        "input_values": torch.randn(TEXTS, length) * mask,
        "attention_mask": mask,
        "labels": ignored(labels["input_ids"], labels["attention_mask"]),
    }


def image_text(pictures, size=32):
    """So many tokens stand for the image, anywhere in the text."""
    ids = tokens(2, 40)
    ids[ids == 60] = 3
    for row in ids:
        start = int(torch.randint(40 - pictures, ()))
        row[start : start + pictures] = 60
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(2, 3, size, size),
        "labels": ids.where(ids != 60, -100),
    }


def batch(task, form):
    match task:
        case "causal":
            return causal()
        case "masked":
            return masked()
        case "translation":
            return translation()
        case "texts":
            return texts() | {"labels": torch.randint(CLASSES, (TEXTS,))}
        case "token classes":
            made = texts()
            return made | {"labels": ignored(torch.randint(CLASSES, (TEXTS, LENGTH)), made["attention_mask"])}
        case "answers":
            return answers()
        case "choices":
            return choices()
        case "images":
            return {"pixel_values": torch.randn(2, 3, form, form), "labels": torch.randint(CLASSES, (2,))}
        case "pixels":
            images, labels = torch.randn(2, 3, form, form), torch.randint(CLASSES, (2, form, form))
            return {"pixel_values": images, "labels": labels}
        case "boxes":
            return boxes(form)
        case "ctc":
            return ctc()
        case "sounds":
            return {"input_values": torch.randn(2, 400), "labels": torch.randint(CLASSES, (2,))}
        case "image text":
            return image_text(form)
    raise ValueError(task)


FORMS = {"images": (32, 64, 224), "pixels": (32, 64), "boxes": (64,), "image text": (16, 4, 1)}
"""Sides of images, or how many tokens stand for one: the first with which the model runs."""


def build(task, kind, form):
    import transformers

    config = transformers.CONFIG_MAPPING[kind](**options_of(transformers.CONFIG_MAPPING[kind]))
    module = getattr(transformers, MAPPINGS[task][1]).from_config(config).train()
    return Iteration(module, batch(task, form))


def candidates(known):
    """known: kinds that other lists have."""
    from transformers.models.auto import modeling_auto

    for task, (mapping, _auto) in MAPPINGS.items():
        for kind in sorted(getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")):
            if kind in known:
                continue
            for form in FORMS.get(task, (0,)):
                yield f"{kind} {task}", partial(build, task, kind, form)


# ── peft: its tuners on a tiny Llama ────────────────────────────────────────────────────────────────

TUNED = {"r": 4, "target_modules": ["q_proj", "v_proj"], "num_virtual_tokens": 4, "total_step": 100}


def tuned(kind):
    import inspect

    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
    from strangers_tiny import configured

    chosen = PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(kind)]
    known = inspect.signature(chosen).parameters
    options = {name: value for name, value in TUNED.items() if name in known}
    module = peft.get_peft_model(
        configured("AutoModelForCausalLM", "llama", GROUPED), chosen(task_type="CAUSAL_LM", **options)
    )
    return Iteration(module.train(), causal())


def tuners():
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    for kind in sorted(each.value for each in PEFT_TYPE_TO_CONFIG_MAPPING):
        yield f"Llama {kind}", partial(tuned, kind)
