"""Language models by name: the configurations that the papers evaluate, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from ..graphs.errors import InputError


@dataclass(frozen=True)
class Transformer:
    """Configuration of a decoder.

    hidden, ffn: elements per token, inside and in the middle of the MLP.
    positions: rows of a learned position table, 0 for none.
    gated: whether the MLP has a gate in addition to its first matrix (SwiGLU).
    biases: whether all matrices and norms have one.
    tied: whether the head reads the embedding's weight.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    vocabulary: int
    source: str
    positions: int = 0
    gated: bool = False
    biases: bool = True
    tied: bool = False

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        block = sum(self.block_weights.values())
        head = 0 if self.tied else self.vocabulary * self.hidden
        return self.layers * block + self.embedding_weights + head

    @property
    def embedding_weights(self) -> int:
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def block_weights(self) -> dict[str, int]:
        """Return the elements of the four matrices of a block; the norm before a matrix counts with it."""
        h, f, first = self.hidden, self.ffn, 2 if self.gated else 1
        # Scale and shift, or the scale alone; a bias per row of each matrix.
        norm = 2 * h if self.biases else h
        bias = 1 if self.biases else 0
        return {
            "qkv": 3 * h * (h + bias) + norm,
            "project": h * (h + bias),
            "up": first * f * (h + bias) + norm,
            "down": h * (f + bias),
        }


_GPT2 = "Radford et al. 2019, Language models are unsupervised multitask learners"
_LLAMA2 = "Touvron et al. 2023, arXiv:2307.09288"
_LOHAN = "Liao et al., LoHan, table IV (arXiv:2403.06504)"


def _gpt2(size: str, layers: int, hidden: int, heads: int) -> Transformer:
    name = f"gpt2{size}"
    return Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        vocabulary=50257,
        source=_GPT2,
        positions=1024,
        tied=True,
    )


def _llama2(size: str, layers: int, hidden: int, ffn: int, heads: int) -> Transformer:
    return Transformer(
        name=f"llama-2-{size}",
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        vocabulary=32000,
        source=_LLAMA2,
        gated=True,
        biases=False,
    )


def _lohan(size: str, layers: int, heads: int, hidden: int) -> Transformer:
    """Return a decoder after GPT-3 and OPT: vocabulary 50257, sequences of 1024."""
    name = f"lohan-{size}"
    return Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        vocabulary=50257,
        source=_LOHAN,
        positions=1024,
        tied=True,
    )


MODELS = {
    model.name: model
    for model in (
        _gpt2("", 12, 768, 12),
        _gpt2("-medium", 24, 1024, 16),
        _gpt2("-large", 36, 1280, 20),
        _gpt2("-xl", 48, 1600, 25),
        _llama2("7b", 32, 4096, 11008, 32),
        _llama2("13b", 40, 5120, 13824, 40),
        Transformer(
            name="phi-2",
            layers=32,
            hidden=2560,
            ffn=10240,
            heads=32,
            vocabulary=51200,
            source="microsoft/phi-2, config.json on Hugging Face",  # rotary positions: no table
        ),
        _lohan("6b", 28, 32, 4096),
        _lohan("13b", 40, 40, 5120),
        _lohan("30b", 48, 56, 7168),
        _lohan("70b", 80, 64, 8192),
        _lohan("135b", 88, 88, 11264),
        _lohan("175b", 96, 96, 12288),
        _lohan("276b", 112, 112, 14336),
        _lohan("412b", 128, 128, 16384),
    )
}


def model_named(name: str) -> Transformer:
    """Return the model of this name. Raises InputError."""
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}: known are {', '.join(MODELS)}")
    return MODELS[name]
