"""Models of diffusers, small: by name, functions that return an Iteration."""

from typing import Any

import diffusers
import torch
from memplan.model.iteration import Iteration
from strangers_torch import square

LATENT = (2, 4, 16, 16)
TEXT = (2, 6, 16)
VIDEO = (1, 4, 3, 16, 16)


def sample_of(output) -> Any:
    sample = next(iter(output.values())) if isinstance(output, dict) else output
    sample = sample[0] if isinstance(output, tuple) else sample
    if isinstance(sample, tuple | list):
        return sum(map(square, sample))
    if not isinstance(sample, torch.Tensor):  # a distribution, of an encoder
        return square(sample.mean)
    return square(sample)


def made(kind, inputs, **options):
    return lambda: Iteration(getattr(diffusers, kind)(**options).train(), inputs(), sample_of)


def steps(samples=2):
    return torch.randint(1000, (samples,))


def noisy(name="sample", shape=LATENT, **others):
    return lambda: {
        name: torch.randn(*shape),
        "timestep": steps(shape[0]),
        **{key: torch.randn(*size) for key, size in others.items()},
    }


def images(*shape):
    return lambda: (torch.randn(*shape),)


BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
CONDITIONAL = {
    **BLOCKS,
    "sample_size": 16,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 8,
}
AUTOENCODER = {
    **BLOCKS,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}

DIFFUSERS = {
    "UNet2D": made(
        "UNet2DModel",
        noisy(),
        **BLOCKS,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "UNet2DCondition": made(
        "UNet2DConditionModel",
        noisy(encoder_hidden_states=TEXT),
        **CONDITIONAL,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ),
    "UNet1D": made(
        "UNet1DModel",
        noisy(shape=(2, 14, 16)),
        in_channels=14,
        out_channels=14,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        layers_per_block=1,
        time_embedding_type="positional",
        use_timestep_embedding=True,
        act_fn="mish",
        down_block_types=("DownResnetBlock1D",) * 2,
        up_block_types=("UpResnetBlock1D",),
        mid_block_type="MidResTemporalBlock1D",
        out_block_type="OutConv1DBlock",
        flip_sin_to_cos=False,
        freq_shift=1.0,
    ),
    "UNet3DCondition": made(
        "UNet3DConditionModel",
        noisy(shape=VIDEO, encoder_hidden_states=(1, 6, 16)),
        **BLOCKS,
        sample_size=16,
        cross_attention_dim=16,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
    ),
    "ControlNet": made(
        "ControlNetModel",
        noisy(encoder_hidden_states=TEXT, controlnet_cond=(2, 3, 32, 32)),
        **{key: value for key, value in CONDITIONAL.items() if key != "sample_size"},
        conditioning_embedding_out_channels=(16, 32),
    ),
    "AutoencoderKL": made("AutoencoderKL", images(2, 3, 32, 32), **AUTOENCODER),
    "AutoencoderTiny": made(
        "AutoencoderTiny",
        images(2, 3, 32, 32),
        encoder_block_out_channels=(16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    ),
    "VQModel": made("VQModel", images(2, 3, 32, 32), **AUTOENCODER, latent_channels=3, num_vq_embeddings=16),
    "AsymmetricAutoencoderKL": made(
        "AsymmetricAutoencoderKL",
        images(2, 3, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        down_block_out_channels=(16, 32),
        up_block_types=("UpDecoderBlock2D",) * 2,
        up_block_out_channels=(16, 32),
        norm_num_groups=8,
    ),
    "AutoencoderKLTemporalDecoder": made(
        "AutoencoderKLTemporalDecoder",
        lambda: {"sample": torch.randn(2, 3, 32, 32), "num_frames": 2},
        block_out_channels=(32, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        latent_channels=4,
        layers_per_block=1,
    ),
    "DiT": made(
        "DiTTransformer2DModel",
        lambda: {
            "hidden_states": torch.randn(*LATENT),
            "timestep": steps(),
            "class_labels": torch.randint(8, (2,)),
        },
        **HEADS,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=4,
        num_embeds_ada_norm=8,
        norm_num_groups=8,
    ),
    "PixArt": made(
        "PixArtTransformer2DModel",
        lambda: {
            **noisy("hidden_states", encoder_hidden_states=TEXT)(),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        **HEADS,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        cross_attention_dim=16,
        sample_size=16,
        patch_size=4,
        caption_channels=16,
        norm_num_groups=8,
        use_additional_conditions=False,
    ),
    "SD3": made(
        "SD3Transformer2DModel",
        noisy("hidden_states", encoder_hidden_states=TEXT, pooled_projections=(2, 32)),
        **HEADS,
        sample_size=16,
        patch_size=4,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        pos_embed_max_size=16,
    ),
    "Flux": made(
        "FluxTransformer2DModel",
        lambda: {
            "hidden_states": torch.randn(2, 16, 4),
            "encoder_hidden_states": torch.randn(*TEXT),
            "pooled_projections": torch.randn(2, 16),
            "timestep": torch.rand(2),
            "img_ids": torch.randn(16, 3),
            "txt_ids": torch.randn(6, 3),
        },
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        patch_size=1,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=[4, 4, 8],
    ),
    "AuraFlow": made(
        "AuraFlowTransformer2DModel",
        noisy("hidden_states", encoder_hidden_states=TEXT),
        **HEADS,
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        joint_attention_dim=16,
        caption_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=256,
    ),
    "CogVideoX": made(
        "CogVideoXTransformer3DModel",
        noisy("hidden_states", (1, 3, 4, 16, 16), encoder_hidden_states=(1, 6, 16)),
        **HEADS,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=16,
        num_layers=1,
        sample_width=16,
        sample_height=16,
        sample_frames=9,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=6,
    ),
    "Wan": made(
        "WanTransformer3DModel",
        noisy("hidden_states", (1, 4, 3, 16, 16), encoder_hidden_states=(1, 6, 16)),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    ),
    "Sana": made(
        "SanaTransformer2DModel",
        noisy("hidden_states", encoder_hidden_states=TEXT),
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=8,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=16,
    ),
    "Prior": made(
        "PriorTransformer",
        lambda: {
            "hidden_states": torch.randn(2, 16),
            "timestep": steps(),
            "proj_embedding": torch.randn(2, 16),
            "encoder_hidden_states": torch.randn(2, 7, 16),
        },
        **HEADS,
        num_layers=2,
        embedding_dim=16,
        num_embeddings=7,
        additional_embeddings=4,
    ),
    "T2IAdapter": made(
        "T2IAdapter", images(2, 3, 64, 64), channels=[16, 32], num_res_blocks=1, downscale_factor=8
    ),
}
