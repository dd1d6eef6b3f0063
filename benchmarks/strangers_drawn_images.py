"""Candidates of timm (every model that it lists) and of diffusers (every class of models), as small as their
options make them."""

import inspect
from functools import partial

import torch
from memplan.model.iteration import Iteration, Labelled
from strangers_timm import classifier
from torch import nn

SIDES = (64, 96, 224)


def of_timm(known):
    """known: names that other lists have."""
    import timm

    for name in sorted(timm.list_models()):
        if name not in known:
            for side in SIDES:
                yield name, partial(of_side, name, side)


def of_side(name, side):
    """Raises ValueError for a model that is too large for a list of small ones."""
    import timm

    with torch.device("meta"):
        number = sum(each.numel() for each in timm.create_model(name, num_classes=5).parameters())
    if number > 13_000_000:
        raise ValueError(f"{number} parameters")
    return classifier(name, side)()


# ── diffusers ───────────────────────────────────────────────────────────────────────────────────────

SIZES = {
    "sample_size": 8,
    "num_layers": 2,
    "num_single_layers": 1,
    "num_refiner_layers": 1,
    "n_refiner_layers": 1,
    "num_double_layers": 1,
    "num_attention_heads": 2,
    "n_heads": 2,
    "n_kv_heads": 2,
    "num_kv_heads": 2,
    "num_key_value_heads": 2,
    "attention_head_dim": 16,
    "n_layers": 2,
    "dim": 32,
    "hidden_size": 32,
    "inner_dim": 32,
    "ffn_dim": 64,
    "freq_dim": 16,
    "in_channels": 4,
    "out_channels": 4,
    "latent_channels": 4,
    "z_dim": 4,
    "base_dim": 8,
    "cross_attention_dim": 32,
    "caption_channels": 32,
    "caption_projection_dim": 32,
    "text_embed_dim": 32,
    "text_dim": 32,
    "cap_feat_dim": 32,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 32,
    "block_out_channels": (32, 32),
    "encoder_block_out_channels": (32, 32),
    "decoder_block_out_channels": (32, 32),
    "axes_dims_rope": (4, 6, 6),
    "axes_dim": (4, 6, 6),
    "axes_dims": (4, 6, 6),
    "axes_lens": (32, 32, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "num_embeds_ada_norm": 8,
    "patch_size": 2,
    "max_seq_len": 64,
    "num_frames": 1,
    "text_len": 8,
    "time_embed_dim": 32,
    "embedding_dim": 32,
    "num_embeddings": 8,
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
}
WANTED = (
    "encoder_hidden_states",
    "timestep",
    "pooled_projections",
    "encoder_attention_mask",
    "img_ids",
    "txt_ids",
)
"""Inputs that training has though they may be left out."""
TEXT, NOISE, TIMES = (2, 8, 32), (2, 4, 8, 8), (2,)


def mean_square(output, target):
    found = first(output)
    return (found.float() - target.expand_as(found)).square().mean()


def first(output):
    while not isinstance(output, torch.Tensor):
        output = output.sample if hasattr(output, "sample") and not callable(output.sample) else output[0]
    return output


def shaped(dimensions, name):
    """An input by the name of forward's parameter. dimensions: of the noise."""
    noise = {3: (2, 16, 4), 4: NOISE, 5: (2, 4, 1, 8, 8), 6: (2, 4, 5, 8, 8)}[dimensions]
    if name in ("timestep", "timesteps", "guidance", "t"):
        return torch.rand(2) if name == "guidance" else torch.randint(1000, TIMES)
    if name in ("encoder_hidden_states", "encoder_hidden_states_t5", "context", "text_embeds"):
        return torch.randn(TEXT)
    if "mask" in name:
        return (torch.arange(8) < torch.randint(3, 9, (2, 1))).long()
    if name in ("pooled_projections", "proj_embedding"):
        return torch.randn(2, 32)
    if name == "class_labels":
        return torch.randint(8, (2,))
    if name == "img_ids":
        return torch.cat([torch.zeros(16, 1), torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0))], 1)
    if name == "txt_ids":
        return torch.zeros(8, 3)
    if name in ("hidden_states", "sample", "x", "latent"):
        return torch.randn(noise)
    raise ValueError(f"an input {name}")


def of_kind(value, default):
    """A number, or as many as the default has; names of blocks that are not the class's stay its own."""
    if isinstance(default, tuple | list):
        if isinstance(value, tuple):
            return default[:2] if isinstance(value[0], str) and value[0] not in default else value
        return type(default)([value] * len(default))
    return default if isinstance(value, tuple) and default is not None else value


def denoiser(kind, dimensions):
    known = inspect.signature(kind.__init__).parameters
    module = kind(
        **{name: of_kind(SIZES[name], known[name].default) for name in SIZES if name in known}
    ).train()
    inputs = {}
    for name, parameter in inspect.signature(kind.forward).parameters.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind == 1
        wanted = needed or name in WANTED
        if name != "self" and wanted:
            inputs[name] = shaped(dimensions, name)
    return Iteration(module, Labelled(inputs, torch.randn(1)), mean_square)


def of_diffusers(known):
    import diffusers

    for name in sorted(dir(diffusers)):
        if not any(part in name for part in ("Model", "Transformer", "Autoencoder", "UNet", "VQ", "UVit")):
            continue
        kind = getattr(diffusers, name, None)
        if name.lower() in known or not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)):
            continue
        if issubclass(kind, nn.Module):
            for dimensions in (4, 3, 5, 6):
                yield name, partial(denoiser, kind, dimensions)
