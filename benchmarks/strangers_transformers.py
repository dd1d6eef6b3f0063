"""Small models of transformers that nobody tuned for: by name, functions that return an Iteration.

Random weights, tiny configurations.
"""

from functools import partial

import torch
from memplan.runtime.model.iteration import Iteration

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GROUPED = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
EXPERTS = {
    **GROUPED,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
IMAGE = {**TINY, "image_size": 32, "patch_size": 8}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "image_size": 32}
SPEECH = {
    **TINY,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
SWIN = {
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "image_size": 32,
    "patch_size": 4,
}
DEEPSEEK = {
    **TINY,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}


def configured(auto, kind, options, **others):
    import transformers

    config = transformers.CONFIG_MAPPING[kind](**options, **others)
    return getattr(transformers, auto).from_config(config).train()


def tokens(*shape):
    return torch.randint(3, 64, shape)


def language(kind, options, dtype=None, **others):
    """A causal language model."""
    module = configured("AutoModelForCausalLM", kind, options, **others)
    ids = tokens(4, 24)
    return Iteration(module if dtype is None else module.to(dtype), {"input_ids": ids, "labels": ids})


def masked(kind, options, **others):
    ids = tokens(4, 24)
    module = configured("AutoModelForMaskedLM", kind, options, **others)
    return Iteration(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def translation(kind, options, **others):
    ids = tokens(4, 16)
    return Iteration(
        configured("AutoModelForSeq2SeqLM", kind, options, **others), {"input_ids": ids, "labels": ids}
    )


def picture(kind, options, **others):
    module = configured("AutoModelForImageClassification", kind, options, num_labels=5, **others)
    return Iteration(module, {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(5, (4,))})


def segformer():
    module = configured(
        "AutoModelForSemanticSegmentation",
        "segformer",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2]},
        decoder_hidden_size=16,
        num_labels=5,
    )
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(5, (2, 64, 64))
    return Iteration(module, {"pixel_values": images, "labels": labels})


def clip():
    part = {**TINY, "projection_dim": 16}
    picture_part = {**IMAGE, "projection_dim": 16}
    module = configured("AutoModel", "clip", {"text_config": part, "vision_config": picture_part})
    ids = tokens(4, 16)
    images = torch.randn(4, 3, 32, 32)
    return Iteration(module, {"input_ids": ids, "pixel_values": images, "return_loss": True})


def llava():
    from transformers import CLIPVisionConfig, LlamaConfig

    parts = {"text_config": LlamaConfig(**GROUPED), "vision_config": CLIPVisionConfig(**IMAGE)}
    module = configured(
        "AutoModelForImageTextToText", "llava", parts, image_token_index=63, image_seq_length=16
    )
    ids = torch.cat([torch.full((2, 16), 63), torch.randint(3, 60, (2, 8))], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return Iteration(module, {**inputs, "pixel_values": torch.randn(2, 3, 32, 32)})


def whisper():
    module = configured(
        "AutoModelForSpeechSeq2Seq", "whisper", {**BART, "max_source_positions": 20}, num_mel_bins=8
    )
    return Iteration(module, {"input_features": torch.randn(2, 8, 40), "labels": tokens(2, 10)})


def speech(kind):
    module = configured(
        "AutoModelForCTC", kind, SPEECH, mask_time_prob=0.0, layerdrop=0.0, ctc_zero_infinity=True
    )
    return Iteration(module, {"input_values": torch.randn(2, 800), "labels": tokens(2, 6)})


def audio_classes(kind):
    module = configured("AutoModelForAudioClassification", kind, SPEECH, mask_time_prob=0.0, layerdrop=0.0)
    return Iteration(module, {"input_values": torch.randn(2, 800), "labels": torch.randint(2, (2,))})


def patchtst():
    import transformers

    options = {"num_input_channels": 3, "context_length": 32, "prediction_length": 8, "patch_length": 4}
    sizes = {"d_model": 16, "num_attention_heads": 2, "ffn_dim": 32, "num_hidden_layers": 2}
    module = transformers.PatchTSTForPrediction(
        transformers.PatchTSTConfig(**options, **sizes, patch_stride=4)
    )
    return Iteration(module, {"past_values": torch.randn(4, 32, 3), "future_values": torch.randn(4, 8, 3)})


def time_series():
    import transformers

    config = transformers.TimeSeriesTransformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1, 2], d_model=16, num_time_features=1
    )
    module = transformers.TimeSeriesTransformerForPrediction(config)
    return Iteration(
        module,
        {
            "past_values": torch.randn(3, 10),
            "past_time_features": torch.randn(3, 10, 1),
            "past_observed_mask": torch.ones(3, 10),
            "future_values": torch.randn(3, 4),
            "future_time_features": torch.randn(3, 4, 1),
        },
    )


def experts(kind, dtype=None, how=None, **others):
    iteration = language(kind, EXPERTS, dtype, **others)
    if how is not None:
        iteration.module.set_experts_implementation(how)
    return iteration


TRANSFORMERS = {
    "gpt2": lambda: language("gpt2", GPT),
    "gptj": lambda: language("gptj", GPT),
    "gpt_neox": lambda: language("gpt_neox", TINY),
    "opt": lambda: language("opt", TINY, ffn_dim=64, word_embed_proj_dim=32, layerdrop=0.0),
    "bloom": lambda: language("bloom", TINY, n_layer=2, n_head=4),
    "llama": lambda: language("llama", GROUPED),
    "llama bf16": lambda: language("llama", GROUPED, torch.bfloat16),
    "mistral": lambda: language("mistral", GROUPED, sliding_window=8),
    "qwen3": lambda: language("qwen3", GROUPED),
    "gemma2": lambda: language("gemma2", GROUPED, sliding_window=8),
    "gemma3": lambda: language("gemma3_text", GROUPED, sliding_window=8),
    "phi3": lambda: language("phi3", GROUPED),
    "falcon": lambda: language("falcon", TINY),
    "olmo2": lambda: language("olmo2", GROUPED),
    "mamba": lambda: language("mamba", TINY, state_size=4),
    "mamba2": lambda: language(
        "mamba2", TINY, state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=8
    ),
    "rwkv": lambda: language("rwkv", TINY, attention_hidden_size=32),
    "mixtral": lambda: experts("mixtral"),
    "mixtral batched": lambda: experts("mixtral", how="batched_mm"),
    "mixtral bf16": lambda: experts("mixtral", torch.bfloat16),
    "qwen3_moe": lambda: experts("qwen3_moe"),
    "qwen3_moe bf16": lambda: experts("qwen3_moe", torch.bfloat16),
    "deepseek_v3": lambda: language("deepseek_v3", DEEPSEEK),
    "deepseek_v3 bf16": lambda: language("deepseek_v3", DEEPSEEK, torch.bfloat16),
    "gpt_oss": lambda: experts("gpt_oss"),
    "gpt_oss bf16": lambda: experts("gpt_oss", torch.bfloat16),
    "bert": lambda: masked("bert", TINY),
    "roberta": lambda: masked("roberta", TINY),
    "albert": lambda: masked("albert", TINY, embedding_size=16),
    "electra": lambda: masked("electra", TINY, embedding_size=16),
    "distilbert": lambda: masked(
        "distilbert", {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    ),
    "deberta_v2": lambda: masked("deberta-v2", TINY, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": lambda: masked("modernbert", TINY, sep_token_id=1, cls_token_id=0),
    "longformer": lambda: masked("longformer", TINY, attention_window=8),
    "big_bird": lambda: masked("big_bird", TINY, attention_type="original_full"),
    "esm": lambda: masked("esm", TINY, mask_token_id=3, token_dropout=False),
    "fnet": lambda: masked("fnet", TINY),
    "xlnet": lambda: language(
        "xlnet", {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
    ),
    "t5": lambda: translation("t5", T5, decoder_start_token_id=0),
    "bart": lambda: translation("bart", BART),
    "marian": lambda: translation("marian", BART),
    "vit": lambda: picture("vit", IMAGE),
    "beit": lambda: picture("beit", IMAGE),
    "swin": lambda: picture("swin", SWIN),
    "convnext": lambda: picture("convnext", STAGES),
    "resnet-hf": lambda: picture("resnet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    "dinov2": lambda: picture("dinov2", IMAGE),
    "segformer": segformer,
    "clip": clip,
    "llava": llava,
    "whisper": whisper,
    "wav2vec2 ctc": lambda: speech("wav2vec2"),
    "hubert": lambda: audio_classes("hubert"),
    "patchtst": patchtst,
    "time series": time_series,
}


# ── more kinds, by one recipe each ──────────────────────────────────────────────────────────────────

COMMON = {
    **GROUPED,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "sliding_window": 8,
    "layerdrop": 0.0,
}
DECODERS = (
    "afmoe apertus aria_text biogpt bitnet cohere2 cpmant ctrl diffllama exaone4 glm4 gpt_bigcode helium "
    "jetmoe minimax mpt nemotron olmoe openai-gpt phi phimoe qwen2_moe recurrent_gemma smollm3 stablelm xglm"
)
ENCODERS = (
    "convbert deberta ernie funnel ibert luke mobilebert mpnet mra nystromformer roformer squeezebert yoso"
)
TRANSLATORS = (
    "bigbird_pegasus blenderbot fsmt led longt5 m2m_100 mbart mt5 mvp nllb-moe pegasus prophetnet "
    "switch_transformers"
)
PICTURES = (
    "bit convnextv2 cvt deit efficientnet focalnet hiera levit mobilenet_v2 mobilevit poolformer pvt regnet "
    "siglip swiftformer swinv2 vit_msn"
)
PIECES = {
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_groups": 4},
    "convnextv2": STAGES,
    "cvt": {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 1, 1]},
    "efficientnet": {
        "image_size": 32,
        "width_coefficient": 0.25,
        "depth_coefficient": 0.25,
        "hidden_dim": 64,
    },
    "focalnet": {
        "image_size": 32,
        "embed_dim": 16,
        "depths": [1, 1],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
    },
    "hiera": {
        "image_size": [32, 32],
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "masked_unit_size": [4, 4],
        "query_stride": [2, 2],
        "num_query_pool": 1,
    },
    "levit": {
        "image_size": 64,
        "hidden_sizes": [16, 32, 48],
        "num_attention_heads": [1, 2, 3],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
    },
    "mobilenet_v1": {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 8},
    "mobilenet_v2": {"image_size": 32, "depth_multiplier": 0.25},
    "mobilevit": {
        "image_size": 32,
        "hidden_sizes": [12, 16, 20],
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 20, 32],
    },
    "poolformer": {**STAGES, "image_size": 64},
    "pvt": {
        "image_size": 64,
        "hidden_sizes": [8, 16, 16, 32],
        "num_attention_heads": [1, 2, 2, 4],
        "depths": [1, 1, 1, 1],
    },
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4},
    "swiftformer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32]},
    "swinv2": SWIN,
}
SIDES = {"levit": 64, "poolformer": 64, "pvt": 64, "swiftformer": 64}
SEQUENCES = {
    **BART,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 64,
    "d_kv": 8,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "attention_window": 8,
    "attention_type": "original_full",
    "num_experts": 4,
    "expert_capacity": 8,
    "langs": ["a", "b"],
    "src_vocab_size": 64,
    "tgt_vocab_size": 64,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "hidden_size": 32,
    "local_radius": 4,
}


def understood(kind, options):
    """Those of the options that the kind's configuration knows."""
    import transformers

    known = transformers.CONFIG_MAPPING[kind]()
    return {name: option for name, option in options.items() if hasattr(known, name)}


def decoder(kind):
    module = configured("AutoModelForCausalLM", kind, understood(kind, COMMON))
    ids = tokens(4, 24)
    return Iteration(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def picture_of(kind):
    module = configured("AutoModelForImageClassification", kind, PIECES.get(kind, IMAGE), num_labels=5)
    side = SIDES.get(kind, 32)
    return Iteration(
        module, {"pixel_values": torch.randn(4, 3, side, side), "labels": torch.randint(5, (4,))}
    )


def sentences(kind):
    """With an attention mask: some are shorter."""
    ids, mask = tokens(4, 16), torch.ones(4, 16, dtype=torch.int64)
    mask[1, 12:] = 0
    module = configured("AutoModelForSeq2SeqLM", kind, understood(kind, SEQUENCES))
    return Iteration(module, {"input_ids": ids, "attention_mask": mask, "labels": ids})


def answers(kind):
    """The ends of an answer in a text."""
    module = configured(
        "AutoModelForQuestionAnswering", kind, understood(kind, TINY | {"embedding_size": 16})
    )
    ends = torch.randint(20, (2, 4))
    return Iteration(
        module, {"input_ids": tokens(4, 24), "start_positions": ends[0], "end_positions": ends[1]}
    )


def two_towers(kind, text=None, vision=None):
    sizes = {"projection_dim": 16}
    module = configured(
        "AutoModel",
        kind,
        {
            "text_config": {**TINY, **sizes, **(text or {})},
            "vision_config": {**IMAGE, **sizes, **(vision or {})},
        },
        **sizes,
    )
    return Iteration(
        module, {"input_ids": tokens(4, 16), "pixel_values": torch.randn(4, 3, 32, 32), "return_loss": True}
    )


def video():
    module = configured(
        "AutoModelForVideoClassification", "videomae", IMAGE, num_frames=4, tubelet_size=2, num_labels=5
    )
    return Iteration(module, {"pixel_values": torch.randn(2, 4, 3, 32, 32), "labels": torch.randint(5, (2,))})


def masked_picture():
    module = configured(
        "AutoModelForPreTraining",
        "vit_mae",
        IMAGE,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    )
    return Iteration(module, {"pixel_values": torch.randn(4, 3, 32, 32)})


def spectrogram():
    module = configured(
        "AutoModelForAudioClassification",
        "audio-spectrogram-transformer",
        {
            **TINY,
            "num_mel_bins": 16,
            "max_length": 32,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
        },
    )
    return Iteration(module, {"input_values": torch.randn(2, 32, 16), "labels": torch.randint(2, (2,))})


def perceiver():
    module = configured(
        "AutoModelForMaskedLM",
        "perceiver",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_latents": 32,
            "num_latents": 8,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
            "max_position_embeddings": 24,
        },
    )
    ids = tokens(4, 24)
    return Iteration(module, {"inputs": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def detr():
    module = configured(
        "AutoModelForObjectDetection",
        "yolos",
        IMAGE,
        num_labels=5,
        num_detection_tokens=4,
    )
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2]])
    labels = [{"class_labels": torch.tensor([1]), "boxes": boxes} for _ in range(2)]
    return Iteration(module, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": labels})


def decision():
    import transformers

    module = transformers.DecisionTransformerModel(
        transformers.DecisionTransformerConfig(
            state_dim=4, act_dim=2, hidden_size=32, n_layer=2, n_head=4, max_ep_len=16
        )
    )
    inputs = {
        "states": torch.randn(3, 8, 4),
        "actions": torch.randn(3, 8, 2),
        "rewards": torch.randn(3, 8, 1),
        "returns_to_go": torch.randn(3, 8, 1),
        "timesteps": torch.arange(8).repeat(3, 1),
        "attention_mask": torch.ones(3, 8),
    }
    return Iteration(module.train(), inputs, lambda output: output.action_preds.square().mean())


def captions():
    module = configured(
        "AutoModelForCausalLM", "git", {**TINY, "vision_config": IMAGE, "num_image_with_embedding": None}
    )
    ids = tokens(2, 12)
    return Iteration(module, {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32), "labels": ids})


def frozen_lora():
    """peft's adapters in a LLaMA whose own weights are frozen."""
    import peft

    iteration = language("llama", GROUPED)
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return iteration._replace(module=peft.get_peft_model(iteration.module, settings).train())


def checkpointed(iteration):
    iteration.module.gradient_checkpointing_enable()
    return iteration


def compiled(iteration):
    return iteration._replace(module=torch.compile(iteration.module))


def made_by(recipe, kinds):
    return {kind: partial(recipe, kind) for kind in kinds.split()}


MORE = {
    **made_by(decoder, DECODERS),
    **made_by(lambda kind: masked(kind, understood(kind, COMMON | {"embedding_size": 16})), ENCODERS),
    **made_by(sentences, TRANSLATORS),
    **made_by(picture_of, PICTURES),
    "bert questions": lambda: answers("bert"),
    "siglip contrast": lambda: two_towers("siglip"),
    "altclip": lambda: two_towers("altclip"),
    "chinese_clip": lambda: two_towers("chinese_clip"),
    "videomae": video,
    "vit_mae": masked_picture,
    "audio spectrogram": spectrogram,
    "perceiver": perceiver,
    "yolos": detr,
    "decision transformer": decision,
    "git": captions,
    "wavlm": lambda: audio_classes("wavlm"),
    "wav2vec2": lambda: audio_classes("wav2vec2"),
    "sew ctc": lambda: speech("sew"),
    "data2vec-audio ctc": lambda: speech("data2vec-audio"),
    "unispeech ctc": lambda: speech("unispeech"),
    "llama lora": frozen_lora,
    "llama checkpointed": lambda: checkpointed(language("llama", GROUPED)),
    "llama compiled": lambda: compiled(language("llama", GROUPED)),
}
TRANSFORMERS |= MORE
