"""Small models that nobody tuned memplan for: by name, functions that return an Iteration.

`LANGUAGE`, `MASKED` and the others of transformers have random weights and tiny configurations.
"""

import torch
from memplan.runtime.iteration import Iteration
from torch import nn
from torch.nn import functional

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


def square(output):
    return output.float().square().mean()


# ── transformers ────────────────────────────────────────────────────────────────────────────────────


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


# ── plain torch ─────────────────────────────────────────────────────────────────────────────────────


class Calls(nn.Module):
    """A module out of a function of its parts and the inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleDict(parts)

    def forward(self, *inputs):
        return self.function(self.parts, *inputs)


def net(function, *inputs, loss=square, **parts):
    return Iteration(Calls(function, **parts), inputs, loss)


def chain(*layers, x, loss=square):
    return Iteration(nn.Sequential(*layers), (x,), loss)


def recurrent(kind, **options):
    layer = kind(8, 16, batch_first=True, **options)
    width = (options.get("proj_size") or 16) * (2 if options.get("bidirectional") else 1)
    return net(lambda p, x: p.out(p.layer(x)[0]), torch.randn(4, 12, 8), layer=layer, out=nn.Linear(width, 4))


def packed():
    def run(parts, x):
        lengths = torch.tensor([12, 9, 5, 2])
        bundle = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(parts.layer(bundle)[0], batch_first=True)[0]

    return net(run, torch.randn(4, 12, 8), layer=nn.LSTM(8, 16, batch_first=True))


def ctc():
    def loss(logits):
        targets = torch.arange(12).remainder(5).add(1).view(3, 4)
        return functional.ctc_loss(logits.log_softmax(-1), targets, torch.full((3,), 12), torch.full((3,), 4))

    return net(lambda p, x: p.out(x), torch.randn(12, 3, 8), out=nn.Linear(8, 6), loss=loss)


def lstm_cell():
    def run(parts, x):
        state = (x.new_zeros(4, 16), x.new_zeros(4, 16))
        for step in x.unbind(1):
            state = parts.cell(step, state)
        return state[0]

    return net(run, torch.randn(4, 6, 8), cell=nn.LSTMCell(8, 16))


def pointnet():
    def run(parts, x):
        for linear, norm in ((parts.one, parts.norm_one), (parts.two, parts.norm_two)):
            x = norm(linear(x).transpose(1, 2)).transpose(1, 2).relu()
        return x.amax(1)

    norms = {"norm_one": nn.BatchNorm1d(16), "norm_two": nn.BatchNorm1d(32)}
    return net(run, torch.randn(4, 50, 3), one=nn.Linear(3, 16), two=nn.Linear(16, 32), **norms)


def conformer():
    def run(parts, x):
        attended = x + parts.attention(x, x, x, need_weights=False)[0]
        y = functional.glu(parts.widen(parts.norm(attended)).transpose(1, 2), 1)
        y = functional.silu(parts.batch(parts.depth(y))).transpose(1, 2)
        return attended + parts.narrow(y)

    parts = {"attention": nn.MultiheadAttention(16, 4, batch_first=True), "norm": nn.LayerNorm(16)}
    parts |= {"widen": nn.Linear(16, 32), "narrow": nn.Linear(16, 16), "batch": nn.BatchNorm1d(16)}
    return net(run, torch.randn(4, 20, 16), depth=nn.Conv1d(16, 16, 5, padding=2, groups=16), **parts)


def residual(norm, x=None, dtype=None):
    def run(parts, x):
        x = parts.stem(x)
        for name in ("one", "two"):
            x = (x + parts[name](x)).relu()
        return parts.head(x.mean((2, 3)))

    def block():
        return nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), norm(8)
        )

    iteration = net(
        run,
        torch.randn(4, 3, 16, 16) if x is None else x,
        stem=nn.Conv2d(3, 8, 3, padding=1),
        one=block(),
        two=block(),
        head=nn.Linear(8, 5),
    )
    return iteration if dtype is None else under_autocast(iteration, dtype)


class Autocast(nn.Module):
    def __init__(self, module, dtype):
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *inputs):
        with torch.autocast("cpu", self.dtype):
            return self.module(*inputs)


def under_autocast(iteration, dtype=torch.bfloat16):
    return iteration._replace(module=Autocast(iteration.module, dtype))


def separable():
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6()]
    for _block in range(2):
        layers += [
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.Conv2d(8, 8, 1),
        ]
    return chain(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), x=torch.randn(4, 3, 24, 24))


def dense():
    def run(parts, x):
        for name in ("one", "two", "three"):
            x = torch.cat([x, parts[name](x).relu()], 1)
        return x

    parts = {"one": nn.Conv2d(3, 4, 3, padding=1), "two": nn.Conv2d(7, 4, 3, padding=1)}
    return net(run, torch.randn(2, 3, 16, 16), three=nn.Conv2d(11, 4, 3, padding=1), **parts)


def unet():
    def run(parts, x):
        one = parts.down(x).relu()
        two = parts.deep(functional.max_pool2d(one, 2)).relu()
        return parts.out(torch.cat([one, parts.up(two)], 1))

    parts = {"down": nn.Conv2d(3, 8, 3, padding=1), "deep": nn.Conv2d(8, 16, 3, padding=1)}
    parts |= {"up": nn.ConvTranspose2d(16, 8, 2, 2), "out": nn.Conv2d(16, 3, 1)}
    return net(run, torch.randn(2, 3, 16, 16), **parts)


def variational():
    def run(parts, x):
        mean, spread = parts.encoder(x).chunk(2, -1)
        drawn = mean + spread.exp() * torch.randn_like(spread)
        return parts.decoder(drawn) - x, mean, spread

    return net(
        run,
        torch.randn(8, 16),
        loss=lambda made: square(made[0]) + (made[1].square() + made[2].exp() - made[2]).mean(),
        encoder=nn.Linear(16, 8),
        decoder=nn.Linear(4, 16),
    )


def graph_network(attention=False):
    sources, ends = torch.randint(20, (60,)), torch.randint(20, (60,))

    def run(parts, x, sources, ends):
        for name in ("one", "two"):
            sent = parts[name](x)[sources]
            if attention:
                score = parts.score(torch.cat([sent, x[ends]], -1)).exp()
                total = torch.zeros(20, 1).index_add(0, ends, score)
                sent = sent * score / total[ends]
            x = x + torch.zeros_like(x).index_add(0, ends, sent).relu()
        return x

    parts = {"one": nn.Linear(8, 8), "two": nn.Linear(8, 8), "score": nn.Linear(16, 1)}
    return net(run, torch.randn(20, 8), sources, ends, **parts)


def routed():
    """Every expert sees every token, weighted by the router."""

    def run(parts, x):
        shares, chosen = parts.router(x).softmax(-1).topk(2)
        weights = torch.zeros(x.shape[0], 4).scatter(1, chosen, shares)
        return sum(weights[:, [e]] * parts[f"expert{e}"](x) for e in range(4))

    return net(
        run, torch.randn(16, 8), router=nn.Linear(8, 4), **{f"expert{e}": nn.Linear(8, 8) for e in range(4)}
    )


def transformed(kind):
    if kind == "encoder":
        layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
        return net(lambda p, x: p.layer(x), torch.randn(4, 10, 16), layer=layer)
    layer = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
    return net(lambda p, x, y: p.layer(x, y), torch.randn(4, 10, 16), torch.randn(4, 6, 16), layer=layer)


def attention(**options):
    def run(parts, x):
        q, k, v = parts.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, **options)

    return net(run, torch.randn(4, 10, 16), qkv=nn.Linear(16, 48))


def bags():
    def run(parts, ids, dense):
        found = [parts[f"bag{b}"](ids[b]) for b in range(3)]
        return parts.top(torch.cat([parts.bottom(dense), *found], 1))

    bags = {f"bag{b}": nn.EmbeddingBag(20, 8) for b in range(3)}
    return net(
        run,
        torch.randint(20, (3, 4, 5)),
        torch.randn(4, 6),
        bottom=nn.Linear(6, 8),
        top=nn.Linear(32, 1),
        **bags,
    )


def sampled():
    """A spatial transformer."""

    def run(parts, x):
        where = functional.affine_grid(
            parts.locate(x.flatten(1)).view(-1, 2, 3), x.shape, align_corners=False
        )
        return parts.see(functional.grid_sample(x, where, align_corners=False))

    return net(run, torch.randn(2, 3, 8, 8), locate=nn.Linear(192, 6), see=nn.Conv2d(3, 4, 3))


def frequencies():
    def run(parts, x):
        spectrum = torch.fft.rfft(parts.before(x))
        return parts.after(torch.fft.irfft(spectrum * spectrum.abs(), n=16))

    return net(run, torch.randn(4, 16), before=nn.Linear(16, 16), after=nn.Linear(16, 4))


def masked_rows():
    """The loss of the rows that a mask of the inputs picks."""

    def run(parts, x, mask):
        return parts.out(x)[mask]

    return net(run, torch.randn(12, 8), torch.arange(12) % 3 > 0, out=nn.Linear(8, 4))


def nested():
    def run(parts, x, y):
        both = torch.nested.nested_tensor([x, y], layout=torch.jagged)
        return parts.out(both).to_padded_tensor(0.0)

    return net(run, torch.randn(5, 8), torch.randn(3, 8), out=nn.Linear(8, 4))


def quantised():
    """Quantisation-aware training."""
    import warnings

    warnings.simplefilter("ignore")
    from torch.ao import quantization

    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )
    module.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    module, x = quantization.prepare_qat(module.train()), torch.randn(2, 3, 8, 8)
    module(x)  # shapes the observers' buffers
    return Iteration(module, (x,), square)


def parametrized(wrap):
    return chain(wrap(nn.Linear(8, 16)), nn.Tanh(), wrap(nn.Linear(16, 4)), x=torch.randn(6, 8))


def codebook():
    def run(parts, x):
        z = parts.encoder(x)
        nearest = torch.cdist(z, parts.codes.weight).argmin(-1)
        taken = parts.codes(nearest)
        return parts.decoder(z + (taken - z).detach()) - x, taken - z.detach(), z - taken.detach()

    parts = {"encoder": nn.Linear(8, 4), "codes": nn.Embedding(10, 4), "decoder": nn.Linear(4, 8)}
    return net(run, torch.randn(12, 8), loss=lambda made: sum(map(square, made)), **parts)


def half(iteration):
    inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in iteration.inputs)
    return iteration._replace(module=iteration.module.bfloat16(), inputs=inputs)


def last(iteration):
    inputs = tuple(x.contiguous(memory_format=torch.channels_last) for x in iteration.inputs)
    return iteration._replace(module=iteration.module.to(memory_format=torch.channels_last), inputs=inputs)


def group_norm(channels):
    return nn.GroupNorm(2, channels)


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
STRANGERS = {
    "mlp": lambda: chain(
        nn.Linear(8, 32), nn.SELU(), nn.Dropout(0.2), nn.Linear(32, 4), x=torch.randn(16, 8)
    ),
    "lstm": lambda: recurrent(nn.LSTM),
    "lstm 2": lambda: recurrent(nn.LSTM, num_layers=2),
    "lstm bidirectional": lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "lstm dropout": lambda: recurrent(nn.LSTM, num_layers=2, dropout=0.3),
    "lstm projected": lambda: recurrent(nn.LSTM, num_layers=2, proj_size=4),
    "lstm autocast": lambda: under_autocast(recurrent(nn.LSTM)),
    "lstm bf16": lambda: half(recurrent(nn.LSTM)),
    "lstm packed": packed,
    "lstm cell": lstm_cell,
    "gru": lambda: recurrent(nn.GRU, num_layers=2),
    "rnn": lambda: recurrent(nn.RNN, num_layers=2),
    "ctc": ctc,
    "pointnet": pointnet,
    "conformer": conformer,
    "resnet": lambda: residual(nn.BatchNorm2d),
    "resnet group norm": lambda: residual(group_norm),
    "resnet instance norm": lambda: residual(lambda c: nn.InstanceNorm2d(c, affine=True)),
    "resnet autocast": lambda: residual(nn.BatchNorm2d, dtype=torch.bfloat16),
    "resnet group norm autocast": lambda: residual(group_norm, dtype=torch.bfloat16),
    "resnet float16 autocast": lambda: residual(nn.BatchNorm2d, dtype=torch.float16),
    "resnet bf16": lambda: half(residual(nn.BatchNorm2d)),
    "resnet channels last": lambda: last(residual(nn.BatchNorm2d)),
    "mobilenet": separable,
    "mobilenet autocast": lambda: under_autocast(separable()),
    "densenet": dense,
    "unet": unet,
    "vae": variational,
    "vq-vae": codebook,
    "gnn": graph_network,
    "gat": lambda: graph_network(attention=True),
    "dense experts": routed,
    "encoder": lambda: transformed("encoder"),
    "encoder autocast": lambda: under_autocast(transformed("encoder")),
    "transformer": lambda: transformed("both"),
    "attention": lambda: attention(is_causal=True),
    "attention dropout": lambda: attention(dropout_p=0.2),
    "dlrm": bags,
    "spatial transformer": sampled,
    "fft": frequencies,
    "masked rows": masked_rows,
    "nested": nested,
    "qat": quantised,
    "weight norm": lambda: parametrized(nn.utils.parametrizations.weight_norm),
    "spectral norm": lambda: parametrized(nn.utils.parametrizations.spectral_norm),
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
