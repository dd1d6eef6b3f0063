"""Small models of transformers that nobody tuned for: by name, functions that return an Iteration.

Random weights, tiny configurations.
"""

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
