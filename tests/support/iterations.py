"""Small training iterations, one for each thing that tracing has to get right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from memplan.model.file import load_model_file
from memplan.model.iteration import Iteration, Labelled
from torch import nn
from torch.nn import functional

EXAMPLES = Path(__file__).parents[2] / "examples"


def mean_square(output):
    return output.square().mean()


def perceptron():
    layers = [nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4)]
    return Iteration(nn.Sequential(*layers), (torch.randn(6, 8),), mean_square)


def half_precision():
    layers = [nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 4)]
    module = nn.Sequential(*layers).to(torch.bfloat16)
    return Iteration(module, (torch.randn(8, 16).to(torch.bfloat16),), lambda o: mean_square(o.float()))


class Mixed(nn.Module):
    """Casts to bfloat16 by itself."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return mean_square(self.layers(x).float())


def mixed_precision():
    return Iteration(Mixed(), (torch.randn(8, 16),))


class Tied(nn.Module):
    """One weight, two uses; a padding index; an ignored label."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8, padding_idx=0)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        logits = self.head(self.table(tokens).tanh())
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=3)


def tied():
    return Iteration(Tied(), (torch.randint(20, (3, 5)),))


class Frozen(nn.Module):
    """Frozen and unused parameters, keyword inputs of all kinds, a dict as output."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x, *, mask, extra, scale=1.0, verbose=None):
        hidden = self.frozen(self.first(x)).relu() * scale
        hidden = hidden.masked_fill(~mask, 0.0)
        return {"hidden": hidden, "loss": hidden.square().mean() + extra["bias"][0].sum()}


def frozen():
    mask = torch.rand(4, 8) > 0.3
    extra = {"bias": [torch.randn(3)]}
    return Iteration(Frozen(), {"x": torch.randn(4, 8), "mask": mask, "extra": extra, "scale": 2.0})


class InPlace(nn.Module):
    """Changes in place of activations, of slices of them, and of buffers; a buffer that is replaced."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.one, self.other = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        hidden = functional.relu(self.norm(self.convolution(x)), inplace=True)
        hidden = functional.dropout(hidden * 1, 0.2, inplace=True).mean((2, 3))
        changed = hidden.clone()
        changed[:, 0] = hidden[:, 1] * 2
        changed[0] += 1
        self.count += 1
        self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
        return ((self.one + self.other) * changed).sum()


def in_place():
    return Iteration(InPlace(), (torch.randn(2, 3, 8, 8),))


class Shared(nn.Module):
    """Gradients that autograd makes as one tensor, as slices of one tensor, or in another layout."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
        self.v, self.out = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(8, 20))
        self.a, self.b = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x):
        weight = torch.cat([self.q, self.k, self.v])
        hidden = ((x + self.a + self.b) @ weight.t()) @ self.out.t()
        return hidden.square().sum() + self.q.sum() + (self.a + self.b).sum()


def shared_gradients():
    return Iteration(Shared(), (torch.randn(5, 8),))


class Random(nn.Module):
    """Every kind of random number, one of them used by nobody."""

    def __init__(self):
        super().__init__()
        self.linear, self.bilinear = nn.Linear(6, 6), nn.Bilinear(6, 6, 3)
        self.channels, self.alpha = nn.Dropout2d(0.5), nn.AlphaDropout(0.3)

    def forward(self, x):
        hidden = self.linear(x)
        hidden = hidden + torch.randn_like(hidden) * hidden.exp().sqrt()
        hidden = self.alpha(self.channels(hidden[:, :, None, None])[:, :, 0, 0])
        torch.rand(3)
        hidden = self.bilinear(hidden, hidden).logsumexp(1).mean() + functional.gumbel_softmax(hidden).max()
        return hidden + functional.rrelu(x, training=True).mean()


def random_numbers():
    return Iteration(Random(), (torch.randn(5, 6),))


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.group, self.instance = nn.GroupNorm(2, 6), nn.InstanceNorm1d(6, track_running_stats=True)

    def forward(self, x):
        hidden = self.group(self.spectral(self.weight(x)))
        return mean_square(self.instance(hidden[None].transpose(1, 2)) * hidden.t())


def norms():
    return Iteration(Norms(), (torch.randn(5, 6),))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 24, 2, dropout=0.3, batch_first=True, bidirectional=True)

    def forward(self, tokens):
        return mean_square(self.lstm(self.table(tokens))[0])


def lstm():
    return Iteration(Recurrent(), (torch.randint(20, (4, 7)),))


def transformer():
    module = nn.Transformer(32, 4, 2, 2, 64, dropout=0.1, batch_first=True)
    return Iteration(module, (torch.randn(2, 6, 32), torch.randn(2, 5, 32)), mean_square)


class UNet(nn.Module):
    """Two levels with a skip connection, batch norms, pooling, upsampling."""

    def __init__(self, width=8):
        super().__init__()
        self.down, self.deep = self.block(3, width), self.block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Sequential(self.block(2 * width, width), nn.Conv2d(width, 2, 1))

    def block(self, inputs, outputs):
        layers = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x):
        skip = self.down(x)
        return self.last(torch.cat([skip, self.up(self.deep(functional.max_pool2d(skip, 2)))], 1))


def unet():
    target = torch.randint(2, (2, 16, 16))
    return Iteration(UNet(), Labelled((torch.randn(2, 3, 16, 16),), target), functional.cross_entropy)


def channels_last():
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(True), nn.Conv2d(6, 6, 3))
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  (torch has no type of it)
    return Iteration(module, (image,), mean_square)


class Experts(nn.Module):
    """Picks rows by values (top-k), without asking for them."""

    def __init__(self):
        super().__init__()
        self.gate, self.weight = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).topk(2)
        made = torch.einsum("bd,bkde->bke", x, self.weight[chosen])
        return mean_square((made * scores[..., None]).sum(1))


def experts():
    return Iteration(Experts(), (torch.randn(6, 8),))


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x > 0) * 2


class Branching(nn.Module):
    """Its own autograd function; branches on values that follow from shapes; a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = nn.Linear(3, 3), torch.arange(3.0)

    def forward(self, x):
        positions = torch.arange(x.shape[0])
        if (positions.diff() == 1).all() and torch.ones_like(x).sum().item() == x.numel():
            x = x * self.table
        return Clipped.apply(self.linear(x)).sum()


def branching():
    return Iteration(Branching(), (torch.randn(2, 3),))


def fourier():
    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 9, 2))

        def forward(self, x):
            return mean_square(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.weight)))

    return Iteration(Filter(), (torch.randn(4, 16),))


# ── transformers ────────────────────────────────────────────────────────────────────────────────────


def tokens():
    return torch.randint(3, 99, (2, 12))


def padding():
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, -4:] = 0
    return mask


def gpt2(width=32, batch=2, length=12):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=99,
        n_positions=length,
        n_embd=width,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    batch_of_tokens = torch.randint(3, 99, (batch, length))
    inputs = {"input_ids": batch_of_tokens, "labels": batch_of_tokens}
    return Iteration(GPT2LMHeadModel(config).train(), inputs)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    inputs = {"input_ids": tokens(), "attention_mask": padding(), "labels": tokens()}
    return Iteration(BertForMaskedLM(config).train(), inputs)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    inputs = {"input_ids": tokens(), "labels": tokens()}
    return Iteration(LlamaForCausalLM(config).train(), inputs)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64}
    layers: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    config = T5Config(**sizes, **layers, use_cache=False)
    inputs = {"input_ids": tokens(), "attention_mask": padding(), "labels": tokens()}
    return Iteration(T5ForConditionalGeneration(config).train(), inputs)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        image_size=32,
        patch_size=8,
    )
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 0])}
    return Iteration(ViTForImageClassification(config).train(), inputs)


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {
        "embedding_size": 8,
        "hidden_sizes": [16, 32],
        "depths": [1, 2],
        "num_labels": 10,
    }
    config = ResNetConfig(**sizes)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 9])}
    return Iteration(ResNetForImageClassification(config).train(), inputs)


ITERATIONS = {
    build.__name__: build
    for build in (
        *(perceptron, half_precision, mixed_precision, tied, frozen, in_place, shared_gradients),
        *(random_numbers, norms, lstm, transformer, unet, channels_last, experts, branching, fourier),
        *(gpt2, bert, llama, t5, vit, resnet),
    )
}


def seeded(name):
    torch.manual_seed(0)
    return ITERATIONS[name]()


def example(name):
    """One of the examples that come with memplan."""
    return load_model_file(str(EXAMPLES / f"{name}.py")).build()
