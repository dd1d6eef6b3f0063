"""Small models of plain PyTorch that nobody tuned for: by name, functions that return an Iteration."""

from collections.abc import Iterable
from typing import Any

import torch
from memplan.model.iteration import Iteration, Labelled
from torch import nn
from torch.nn import functional


def square(output):
    return output.float().square().mean()


def total(losses: Iterable[torch.Tensor]) -> Any:
    """Add up losses, of which there is at least one."""
    return sum(losses)


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
    def run(parts, x, lengths):
        bundle = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(parts.layer(bundle)[0], batch_first=True)[0]

    lengths = torch.cat([torch.tensor([12]), torch.randint(2, 13, (3,)).sort(descending=True).values])
    return net(run, torch.randn(4, 12, 8), lengths, layer=nn.LSTM(8, 16, batch_first=True))


def ctc():
    """The frames and the labels of each text are as many as its length says."""

    def loss(logits, labels):
        return functional.ctc_loss(logits.log_softmax(-1), *labels)

    iteration = net(lambda p, x: p.out(x), torch.randn(12, 3, 8), out=nn.Linear(8, 6), loss=loss)
    labels = (torch.randint(1, 6, (3, 4)), torch.randint(9, 13, (3,)), torch.randint(2, 5, (3,)))
    return iteration._replace(inputs=Labelled(iteration.inputs, labels))


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

    return net(run, torch.randn(12, 8), torch.rand(12) < 0.7, out=nn.Linear(8, 4))


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

    module: Any = nn.Sequential(
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


TORCH = {
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
}
