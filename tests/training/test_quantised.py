"""Frozen weights in int8 or float8 beside trained ones: planned in parts, refused where they wrap others."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

INT4: Any = torch.int4  # pyright: ignore


class Wrapped(Tensor):
    """int8 rows and their scales, as quantisation libraries wrap them."""

    rows: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls, rows: Tensor, scales: Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scales.dtype)  # pyright: ignore
        made.rows, made.scales = rows, scales
        return made

    def __tensor_flatten__(self) -> Any:
        return ["rows", "scales"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, _meta: Any, _size: Any, _stride: Any) -> Any:
        return Wrapped(parts["rows"], parts["scales"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].rows, args[0].scales)
        full = [x.rows * x.scales if isinstance(x, cls) else x for x in args]
        return func(*full, **(kwargs or {}))


class Low(nn.Module):
    """Adapters of low rank beside a frozen weight of `rows` and `scales`."""

    rows: Tensor
    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("rows", torch.randint(-127, 128, (32, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(32, 1) / 127)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (functional.linear(x, self.rows * self.scales) + self.up(self.down(x))).square().mean()


def test_a_weight_of_two_buffers_is_planned() -> None:
    module = Low()
    baseline, x = copy.deepcopy(module), torch.randn(64, 16)
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (module, baseline))
    step = memplan.optimize(module, (x,), budget="1MB", optimizer=optimizer, solver="store-all")
    for _ in range(2):
        loss = baseline(x)
        loss.backward()
        other.step()
        other.zero_grad()
        assert torch.equal(step(x), loss)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), baseline.parameters(), strict=True))


class Parts(nn.Module):
    """What torchao.utils.UnwrapTensorSubclass does."""

    def right_inverse(self, weight: Wrapped) -> list[Tensor]:
        return [weight.rows, weight.scales]

    def forward(self, rows: Tensor, scales: Tensor) -> Tensor:
        return Wrapped(rows, scales)


def adapted(base: nn.Module) -> nn.Module:
    """A frozen layer from 16 to 32 between trained ones, and the loss."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 16), base, nn.Linear(32, 4), Mean())


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float().square().mean()


def trained_alike(module: nn.Module, x: Tensor, **options: Any) -> memplan.Step:
    baseline = copy.deepcopy(module)
    optimizers = [
        torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.01) for m in (module, baseline)
    ]
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False}
    step = memplan.optimize(module, (x,), optimizer=optimizers[0], **(given | options))
    for _ in range(3):
        loss = baseline(x)
        loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        assert torch.equal(step(x), loss)
    step.restore_to_device()
    for own, theirs in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own.float(), theirs.float())
    return step


MOVED = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "budget": "95%"}


@pytest.mark.parametrize("options", [{}, MOVED], ids=["device alone", "weights moved"])
def test_a_wrapping_weight_that_is_made_of_its_parts_in_forward_is_planned(options: dict[str, Any]) -> None:
    base = nn.Linear(16, 32, bias=False)
    rows, scales = torch.randint(-127, 128, (32, 16), dtype=torch.int8), torch.rand(32, 1) / 127
    base.weight = nn.Parameter(Wrapped(rows, scales), requires_grad=False)
    parametrize.register_parametrization(base, "weight", Parts())
    module = adapted(base)
    for part in (base.parametrizations.weight.original0, base.parametrizations.weight.original1):  # pyright: ignore
        part.requires_grad_(False)
    step = trained_alike(module, torch.randn(64, 16), **options)
    assert {value.dtype for value in step.plans[0].program.values} >= {torch.int8, torch.float32}


class Eight(nn.Module):
    """A frozen weight in float8, made wider where it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


@pytest.mark.parametrize("options", [{}, MOVED], ids=["device alone", "weights moved"])
def test_a_frozen_weight_in_float8_is_planned(options: dict[str, Any]) -> None:
    trained_alike(adapted(Eight()), torch.randn(64, 16), **options)


class Coded(nn.Linear):
    """Its weight becomes a tensor that wraps others in each forward, as in torchao's float8 training."""

    def forward(self, x: Tensor) -> Tensor:
        scales = self.weight.abs().amax(1, keepdim=True).detach() / 127
        wrapped = Wrapped((self.weight.detach() / scales).round().to(torch.int8), scales)
        return functional.linear(x, wrapped) + functional.linear(x, self.weight)


def test_tensors_that_wrap_others_may_come_and_go_in_forward() -> None:
    trained_alike(adapted(Coded(16, 32)), torch.randn(64, 16))


def quantised(name: str) -> nn.Module:
    """By torchao, unwrapped."""
    torchao: Any = pytest.importorskip("torchao.quantization")
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4  # pyright: ignore
    from torchao.utils import UnwrapTensorSubclass  # pyright: ignore

    torch.manual_seed(2)
    base = nn.Sequential(nn.Linear(64, 32, bias=False)).requires_grad_(False)
    if name == "int4 in int8":
        torchao.quantize_(base, torchao.IntxWeightOnlyConfig(weight_dtype=INT4))
    elif name == "NF4":
        base[0].weight = nn.Parameter(to_nf4(base[0].weight.data, 16, 2), requires_grad=False)
    else:
        torchao.quantize_(base, getattr(torchao, name)())
    with pytest.raises(memplan.InputError, match=r"1.0.weight is a .*Tensor, a tensor that wraps others"):
        memplan.optimize(torchao_net(base), torch.randn(8, 16), budget="1MB", cache=False)
    parametrize.register_parametrization(base[0], "weight", UnwrapTensorSubclass())
    return base.requires_grad_(False)


def torchao_net(base: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), base, nn.Linear(32, 4), Mean())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"),
        *("NF4", "int4 in int8"),
    ],
)
def test_torchaos_weights_unwrapped_are_planned(name: str) -> None:
    trained_alike(torchao_net(quantised(name)), torch.randn(64, 16))


@pytest.mark.scripts
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "IntxWeightOnlyConfig"])
def test_adapters_over_torchaos_weights_are_planned(name: str, dtype: torch.dtype) -> None:
    """Those of peft, unwrapped as docs/training/precision.md says."""
    torchao: Any = pytest.importorskip("torchao.quantization")
    peft: Any = pytest.importorskip("peft")
    transformers: Any = pytest.importorskip("transformers")
    from torchao.utils import UnwrapTensorSubclass  # pyright: ignore

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).to(dtype)
    more = {"weight_dtype": INT4} if name == "IntxWeightOnlyConfig" else {}
    torchao.quantize_(model.model, getattr(torchao, name)(**more))
    own = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    other = copy.deepcopy(own)
    for layer in other.modules():
        if hasattr(type(layer._parameters.get("weight")), "__tensor_flatten__"):
            parametrize.register_parametrization(layer, "weight", UnwrapTensorSubclass())
    trained = [[p for p in each.parameters() if p.requires_grad] for each in (own, other)]
    eager, optimizer = (torch.optim.AdamW(weights, lr=0.01) for weights in trained)
    tokens = torch.randint(64, (2, 16))
    batch = {"input_ids": tokens, "labels": tokens}
    step = memplan.optimize(other, batch, optimizer=optimizer, budget="100%", solver="store-all", cache=False)
    for _ in range(3):
        loss = own(**batch).loss
        loss.backward()
        eager.step()
        eager.zero_grad()
        assert torch.equal(step(batch), loss)
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_torchaos_float8_training_is_planned() -> None:
    float8: Any = pytest.importorskip("torchao.float8")
    module = torchao_net(nn.Linear(64, 32))
    float8.convert_to_float8_training(module, config=float8.Float8LinearConfig(emulate=True))
    trained_alike(module, torch.randn(64, 16))


def test_a_weight_that_wraps_tensors_is_refused_in_one_line() -> None:
    base = nn.Linear(16, 32, bias=False)
    wrapped = Wrapped(torch.ones(32, 16, dtype=torch.int8), torch.rand(32, 1))
    base.weight = nn.Parameter(wrapped, requires_grad=False)
    module = nn.Sequential(base, nn.Linear(32, 4))
    x = torch.randn(8, 16)
    assert module(x).shape == (8, 4)
    with pytest.raises(memplan.InputError, match=r"0.weight is a Wrapped, .*keep its parts as buffers"):
        memplan.optimize(module, (x,), loss_fn=torch.sum, budget="1MB", solver="store-all")
