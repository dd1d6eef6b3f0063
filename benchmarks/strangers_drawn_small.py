"""Candidates of smaller libraries: by library, pairs of a name and a function that returns an Iteration."""

import inspect
from functools import partial

import torch
from memplan.model.iteration import Iteration, Labelled
from strangers_tiny import tokens
from strangers_torch import Calls, square
from torch import nn
from torch.nn import functional


def calls(run, *inputs, loss=square, **parts):
    return Iteration(Calls(run, **parts).train(), inputs, loss)


# ── torchaudio ──────────────────────────────────────────────────────────────────────────────────────


def of_torchaudio():
    from torchaudio import models as t

    def lengths(most, least):
        found = torch.randint(least, most + 1, (2,))
        found[0] = most
        return found

    def encoder(make, *, width=16, frames=24):
        """CTC on what an encoder of frames with lengths makes."""

        def loss(output, labels):
            logits, sizes = output
            texts, text_sizes = labels
            return functional.ctc_loss(logits.log_softmax(-1).transpose(0, 1), texts, sizes, text_sizes)

        def run(parts, frames, sizes):
            made, sizes = parts.encoder(frames, sizes)
            return parts.out(made), sizes

        def build():
            module = Calls(run, encoder=make(), out=nn.Linear(width, 8)).train()
            batch = (torch.randn(2, frames, width), lengths(frames, 16))
            return Iteration(module, Labelled(batch, (torch.randint(1, 8, (2, 4)), lengths(4, 2))), loss)

        return build

    def wav2vec2(aux):
        module = t.wav2vec2_model(
            "group_norm",
            [(16, 10, 5), (16, 3, 2)],
            False,
            32,
            0.1,
            16,
            2,
            2,
            4,
            0.1,
            64,
            0.1,
            0.1,
            False,
            0.0,
            aux,
        )
        return calls(lambda p, x: p.model(x)[0], torch.randn(2, 400), model=module)

    def hubert():
        module = t.hubert_pretrain_model(
            "group_norm", [(16, 10, 5), (16, 3, 2)], False, 32, 0.1, 16, 2, 2, 4, 0.1, 64, 0.1, 0.1, False,
            0.0, 0.5, "static", 0.0, False, 4, 1, 0.0, "static", 0.0, False, 4, 1, True, 0.1, 8, 16, 1.0,
        )  # fmt: skip
        return calls(
            lambda p, x, y: p.model(x, y)[0], torch.randn(2, 400), torch.randint(8, (2, 39)), model=module
        )

    def rnnt():
        from torchaudio.functional import rnnt_loss

        module = t.emformer_rnnt_model(
            input_dim=8, encoding_dim=16, num_symbols=8, segment_length=4, right_context_length=1,
            time_reduction_input_dim=8, time_reduction_stride=1, transformer_num_heads=2,
            transformer_ffn_dim=16,
            transformer_num_layers=1, transformer_dropout=0.1, transformer_activation="gelu",
            transformer_left_context_length=4, transformer_max_memory_size=0,
            transformer_weight_init_scale_strategy="depthwise", transformer_tanh_on_mem=True,
            symbol_embedding_dim=8, num_lstm_layers=1, lstm_layer_norm=True, lstm_layer_norm_epsilon=1e-3,
            lstm_dropout=0.1,
        )  # fmt: skip

        def run(parts, sources, sizes, texts, text_sizes):
            made, sizes, _texts, _state = parts.model(sources, sizes, texts, text_sizes)
            return rnnt_loss(
                made, texts[:, 1:].contiguous().int(), sizes.int(), (text_sizes - 1).int(), blank=0
            )

        return calls(
            run, torch.randn(2, 13, 8), torch.full((2,), 12, dtype=torch.int32),
            torch.randint(1, 8, (2, 5)).int(), lengths(5, 3).int(), model=module, loss=None,
        )  # fmt: skip

    def tacotron2():
        module = t.Tacotron2(
            n_mels=8, n_symbol=16, symbol_embedding_dim=16, encoder_embedding_dim=16, encoder_n_convolution=1,
            decoder_rnn_dim=16, prenet_dim=16, attention_rnn_dim=16, attention_hidden_dim=8,
            attention_location_n_filter=4, attention_location_kernel_size=5, postnet_n_convolution=2,
            postnet_embedding_dim=16,
        )  # fmt: skip
        sizes = torch.tensor([8, int(torch.randint(4, 9, ()))])
        return calls(
            lambda p, *x: p.model(*x)[0], torch.randint(16, (2, 8)), sizes, torch.randn(2, 8, 6),
            torch.tensor([6, int(torch.randint(3, 7, ()))]), model=module,
        )  # fmt: skip

    def alone(make, *shape):
        return lambda: calls(lambda p, x: p.model(x), torch.randn(*shape), model=make(), loss=any_square)

    def wavernn():
        module = t.WaveRNN(
            upsample_scales=[2, 2],
            n_classes=8,
            hop_length=4,
            n_res_block=1,
            n_rnn=16,
            n_fc=16,
            kernel_size=3,
            n_freq=8,
            n_hidden=16,
            n_output=16,
        )
        return calls(
            lambda p, x, y: p.model(x, y), torch.randn(2, 1, 16), torch.randn(2, 1, 8, 6), model=module
        )

    yield "Conformer", encoder(lambda: t.Conformer(16, 2, 32, 2, 5, dropout=0.1))
    yield "Conformer group norm", encoder(lambda: t.Conformer(16, 2, 32, 1, 5, use_group_norm=True))
    yield "Emformer", encoder(lambda: t.Emformer(16, 2, 32, 2, 4, left_context_length=4))
    yield "ConvTasNet", alone(lambda: t.ConvTasNet(2, 8, 16, 3, 8, 16, 2, 1), 2, 1, 128)
    yield "DeepSpeech", alone(lambda: t.DeepSpeech(8, 16, 6, 0.1), 2, 1, 10, 8)
    yield "HDemucs", alone(lambda: t.HDemucs(["a", "b"], 1, 8, depth=3, nfft=256), 1, 1, 2048)
    yield "SquimObjective", alone(lambda: t.squim_objective_model(8, 2, 16, 1, 16, 8, 4), 2, 512)
    yield "Wav2Letter", alone(lambda: t.Wav2Letter(8, "waveform", 1), 2, 1, 4000)
    yield "Wav2Letter mfcc", alone(lambda: t.Wav2Letter(8, "mfcc", 8), 2, 8, 64)
    yield "Wav2Vec2", partial(wav2vec2, 8)
    yield "HuBERTPretrain", hubert
    yield "RNNT", rnnt
    yield "Tacotron2", tacotron2
    yield "WaveRNN", wavernn


def any_square(output):
    outputs = output if isinstance(output, tuple | list) else (output,)
    return sum(each.float().square().mean() for each in outputs)


# ── x-transformers: each flag of its layers and of its attention ────────────────────────────────────


def of_x_transformers():
    from x_transformers.x_transformers import Attention, AttentionLayers

    for kind, prefix in ((AttentionLayers, ""), (Attention, "attn_")):
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            if parameter.default is False and name != "causal":
                yield f"decoder {prefix}{name}", partial(decoder, prefix + name)


def decoder(flag):
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **{flag: True})
    module = AutoregressiveWrapper(TransformerWrapper(num_tokens=64, max_seq_len=24, attn_layers=layers))
    return Iteration(module.train(), (tokens(2, 24),))


# ── gpytorch: exact and variational processes with each kernel ──────────────────────────────────────


def of_gpytorch():
    import gpytorch

    for name in sorted(gpytorch.kernels.__all__):
        yield f"exact {name}", partial(exact, name)
        yield f"variational {name}", partial(variational, name)


def kernel_of(name):
    import gpytorch

    return gpytorch.kernels.ScaleKernel(getattr(gpytorch.kernels, name)())


def exact(name):
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y):
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean, self.kernel = gpytorch.means.ConstantMean(), kernel_of(name)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Likelihood(nn.Module):
        """The batch is the training data, as for each step of an exact process."""

        def __init__(self):
            super().__init__()
            self.process = Process(torch.randn(12, 2), torch.randn(12))

        def forward(self, x, y):
            self.process.set_train_data(x, y, strict=False)
            marginal = gpytorch.mlls.ExactMarginalLogLikelihood(self.process.likelihood, self.process)
            return -marginal(self.process(x), y)

    return Iteration(Likelihood().train(), (torch.randn(12, 2), torch.randn(12)))


def variational(name):
    import gpytorch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self):
            found = gpytorch.variational.CholeskyVariationalDistribution(4)
            super().__init__(gpytorch.variational.VariationalStrategy(self, torch.randn(4, 2), found))
            self.mean, self.kernel = gpytorch.means.ConstantMean(), kernel_of(name)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Bound(nn.Module):
        def __init__(self):
            super().__init__()
            self.process, self.likelihood = Process(), gpytorch.likelihoods.GaussianLikelihood()
            self.bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.process, num_data=100)

        def forward(self, x, y):
            return -self.bound(self.process(x), y)

    return Iteration(Bound().train(), (torch.randn(12, 2), torch.randn(12)))


# ── nflows: each transform as a flow over a normal ──────────────────────────────────────────────────


def of_nflows():
    from nflows import transforms

    for name in sorted(dir(transforms)):
        kind = getattr(transforms, name)
        if isinstance(kind, type) and issubclass(kind, transforms.Transform):
            yield name, partial(flow, kind)


def flow(kind):
    from nflows import distributions, flows, transforms
    from nflows import nn as nets

    options = {
        "features": 4,
        "num_bins": 4,
        "hidden_features": 16,
        "shape": [4],
        "num_transforms": 2,
        "num_householder": 2,
        "tails": "linear",
        "mask": torch.tensor([1, 0, 1, 0]),
        "transform_net_create_fn": lambda a, b: nets.nets.ResidualNet(a, b, hidden_features=16),
    }
    known = inspect.signature(kind.__init__).parameters
    chosen = {name: value for name, value in options.items() if name in known}
    both = transforms.CompositeTransform(
        [transforms.ReversePermutation(4), kind(**chosen), transforms.LULinear(4), kind(**chosen)]
    )
    module = flows.Flow(both, distributions.StandardNormal([4]))
    return calls(lambda p, x: -p.flow.log_prob(x).mean(), torch.randn(16, 4), flow=module, loss=None)


# ── torchdiffeq: each method, direct and by the adjoint ─────────────────────────────────────────────


def of_torchdiffeq():
    from torchdiffeq._impl.odeint import SOLVERS

    for method in sorted(SOLVERS):
        for adjoint in (False, True):
            yield f"{method} adjoint" if adjoint else method, partial(equation, method, adjoint)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, time, x):
        return self.net(x) * time


def equation(method, adjoint):
    import torchdiffeq

    solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint

    def run(parts, x):
        return solve(parts.field, x, torch.linspace(0, 1, 5), method=method)[-1]

    return calls(run, torch.randn(8, 4), field=Field())


# ── e3nn: its parts between two linear layers ───────────────────────────────────────────────────────


def of_e3nn():
    from e3nn import nn as e3
    from e3nn import o3

    wide, vectors = "8x0e + 4x1o", "4x0e + 2x1o + 1x2e"

    def net(make, width=wide):
        def build():
            layer = make()
            first = o3.Linear(wide, layer.irreps_in if hasattr(layer, "irreps_in") else width)
            return calls(lambda p, x: p.layer(p.first(x)), torch.randn(6, 20), first=first, layer=layer)

        return build

    def product(make):
        def build():
            layer = make()
            return calls(
                lambda p, x, v: p.layer(p.first(x), o3.spherical_harmonics("1x0e + 1x1o + 1x2e", v, True)),
                torch.randn(6, 20), torch.randn(6, 3), first=o3.Linear(wide, wide), layer=layer,
            )  # fmt: skip

        return build

    yield "Linear", net(lambda: o3.Linear(wide, vectors))
    yield "Norm", net(lambda: o3.Norm(wide))
    yield "TensorSquare", net(lambda: o3.TensorSquare(wide, vectors))
    yield (
        "FullyConnectedTensorProduct",
        product(lambda: o3.FullyConnectedTensorProduct(wide, "1x0e + 1x1o + 1x2e", vectors)),
    )
    yield "FullTensorProduct", product(lambda: o3.FullTensorProduct(wide, "1x0e + 1x1o + 1x2e"))
    yield "Activation", net(lambda: e3.Activation("8x0e", [torch.tanh]), "8x0e")
    yield "BatchNorm", net(lambda: e3.BatchNorm(wide))
    yield "Dropout", net(lambda: e3.Dropout(wide, 0.3))
    yield "Gate", net(lambda: e3.Gate("8x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o"))
    yield "NormActivation", net(lambda: e3.NormActivation(wide, torch.sigmoid))
    yield "S2Activation", net(lambda: e3.S2Activation("1x0e + 1x1o + 1x2e", torch.tanh, 10))
    yield "SO3Activation", net(lambda: e3.SO3Activation(1, 1, torch.tanh, 4))
    yield (
        "FullyConnectedNet",
        lambda: calls(
            lambda p, x: p.net(x),
            torch.randn(6, 8),
            net=e3.FullyConnectedNet([8, 16, 4], torch.nn.functional.silu),
        ),
    )


# ── entmax and TabNet ───────────────────────────────────────────────────────────────────────────────


def of_entmax():
    import entmax

    for name in sorted(dir(entmax)):
        kind = getattr(entmax, name)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            continue
        yield name, partial(classified if name.endswith("Loss") else attended, kind)


def classified(kind):
    def loss(output, labels):
        return kind()(output, labels).mean()

    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))
    return Iteration(module, Labelled((torch.randn(8, 8),), torch.randint(6, (8,))), loss)


def attended(kind):
    known = inspect.signature(kind.__init__).parameters
    layer = kind(**{name: value for name, value in {"dim": -1, "budget": 2}.items() if name in known})

    def run(parts, x):
        scores = parts.query(x) @ parts.key(x).transpose(1, 2)
        return parts.out(parts.layer(scores) @ x)

    linear = {name: nn.Linear(8, 8) for name in ("query", "key", "out")}
    return calls(run, torch.randn(2, 10, 8), layer=layer, **linear)


def of_tabnet():
    from pytorch_tabnet import tab_network as t

    grouping = torch.eye(8)
    for mask in ("sparsemax", "entmax"):
        yield (
            f"TabNet {mask}",
            partial(
                tabnet,
                lambda m=mask: t.TabNet(8, 4, 4, 4, 2, mask_type=m, group_attention_matrix=grouping),
                2,
            ),
        )
        yield (
            f"TabNet categories {mask}",
            partial(
                tabnet,
                lambda m=mask: t.TabNet(
                    8,
                    4,
                    4,
                    4,
                    2,
                    cat_idxs=[0],
                    cat_dims=[5],
                    cat_emb_dim=[2],
                    mask_type=m,
                    group_attention_matrix=torch.eye(9)[:, :9],
                ),
                2,
            ),
        )
        yield (
            f"pretraining {mask}",
            partial(
                tabnet,
                lambda m=mask: t.TabNetPretraining(
                    8, n_d=4, n_a=4, n_steps=2, mask_type=m, group_attention_matrix=grouping
                ),
                3,
            ),
        )


def tabnet(make, parts):
    def loss(output, labels):
        if parts == 3:
            found, columns, hidden = output
            return ((found - columns) * hidden).square().mean()
        output, sparsity = output
        return functional.cross_entropy(output, labels) - 1e-3 * sparsity

    table = torch.randn(16, 8)
    table[:, 0] = torch.randint(5, (16,))
    return Iteration(make().train(), Labelled((table,), torch.randint(4, (16,))), loss)


# ── torchao: quantized training ─────────────────────────────────────────────────────────────────────


def of_torchao():
    import torchao.prototype.quantized_training as training
    import torchao.quantization.qat as qat
    from torchao.quantization import quantize_

    def net(*steps):
        module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        for step in steps:
            step(module)
        return Iteration(module.train(), (torch.randn(8, 64),), square)

    def by(make):
        return partial(net, lambda module: quantize_(module, make()))

    for name in (
        "Int8DynActInt4WeightQATQuantizer",
        "Int4WeightOnlyQATQuantizer",
        "Float8ActInt4WeightQATQuantizer",
    ):
        yield name, partial(net, lambda module, n=name: getattr(qat, n)(32).prepare(module))
    bits = (torch.int4, torch.int8)  # pyright: ignore[reportAttributeAccessIssue]  (newer than torch's stubs)
    for dtype in bits:
        weight = partial(qat.IntxFakeQuantizeConfig, dtype, group_size=32)
        yield f"QAT {dtype}", by(lambda w=weight: qat.QATConfig(weight_config=w(), step="prepare"))
    active = partial(qat.IntxFakeQuantizeConfig, torch.int8, "per_token", is_symmetric=False)
    yield "QAT activations", by(lambda: qat.QATConfig(activation_config=active(), step="prepare"))
    yield "int8 weights", by(training.int8_weight_only_quantized_training)
    yield "int8 mixed precision", by(training.int8_mixed_precision_training)
    yield "BitNet", by(training.bitnet_training)
