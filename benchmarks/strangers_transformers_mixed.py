"""Small models of transformers for speech, series, and images with text: by name, functions that return
an Iteration."""

from typing import Any

import torch
from memplan.model.iteration import Iteration
from strangers_tiny import BART, GROUPED, IMAGE, TINY, configured, tokens

SPEECH = {
    **TINY,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}


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
    labels = tokens(2, 6).masked_fill(
        torch.arange(6) >= torch.randint(3, 7, (2, 1)), -100
    )  # as collators pad
    return Iteration(module, {"input_values": torch.randn(2, 800), "labels": labels})


def audio_classes(kind):
    module = configured("AutoModelForAudioClassification", kind, SPEECH, mask_time_prob=0.0, layerdrop=0.0)
    return Iteration(module, {"input_values": torch.randn(2, 800), "labels": torch.randint(2, (2,))})


def patchtst():
    import transformers

    options: dict[str, Any] = {"num_input_channels": 3, "context_length": 32, "prediction_length": 8}
    sizes: dict[str, Any] = {"d_model": 16, "num_attention_heads": 2, "ffn_dim": 32, "num_hidden_layers": 2}
    module = transformers.PatchTSTForPrediction(
        transformers.PatchTSTConfig(**options, **sizes, patch_length=4, patch_stride=4)
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


MIXED = {
    "clip": clip,
    "llava": llava,
    "whisper": whisper,
    "wav2vec2 ctc": lambda: speech("wav2vec2"),
    "hubert": lambda: audio_classes("hubert"),
    "patchtst": patchtst,
    "time series": time_series,
    "siglip contrast": lambda: two_towers("siglip"),
    "altclip": lambda: two_towers("altclip"),
    "chinese_clip": lambda: two_towers("chinese_clip"),
    "audio spectrogram": spectrogram,
    "decision transformer": decision,
    "git": captions,
    "wavlm": lambda: audio_classes("wavlm"),
    "wav2vec2": lambda: audio_classes("wav2vec2"),
    "sew ctc": lambda: speech("sew"),
    "data2vec-audio ctc": lambda: speech("data2vec-audio"),
    "unispeech ctc": lambda: speech("unispeech"),
}
