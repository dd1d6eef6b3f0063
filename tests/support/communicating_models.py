"""Small models whose own code communicates: by DTensors, or by functional collectives."""

from __future__ import annotations

from typing import Any, cast

import sharded_models
import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils import parametrize

MESHES = ("mesh", "replicas")
"""Kinds of models on two dimensions of a mesh of four ranks: batches, and tensor parallelism."""

WIDE, LENGTH, EACH, ROWS, WORDS = 48, 16, 16, 1024, 100


class Mlp(nn.Module):
    def __init__(self, wide: int = WIDE) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(wide)
        self.up, self.down = nn.Linear(wide, 3 * wide), nn.Linear(3 * wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Mlps(nn.Module):
    """Layers of products, whose loss is the mean square of what comes out."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mlp() for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


class Gathered(nn.Module):
    """A parametrization that gathers a weight, as SimpleFSDP's; its gradient is averaged and scattered."""

    def forward(self, weight: Any) -> Tensor:
        full = weight.redistribute(placements=[Replicate()])
        return full.to_local(grad_placements=[Partial("avg")])


class Plain(nn.Module):
    """Layers with ordinary weights, of which each rank has half, and sums over the ranks."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WIDE // 2, WIDE)) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            full = _gathered(weight)
            x = x + torch.tanh(x @ full.t() / WIDE)
        return x.square().mean()


def _gathered(weight: Tensor) -> Tensor:
    named: Any = functional
    gather = getattr(named, "all_gather_single_autograd", None) or named.all_gather_tensor_autograd
    return gather(weight, 0, dist.group.WORLD)


class Layouts(nn.Module):
    """A parametrization that redistributes a weight."""

    def __init__(self, placements: list[Any]) -> None:
        super().__init__()
        self.placements = placements

    def forward(self, weight: Any) -> Tensor:
        return weight.redistribute(placements=self.placements)


class OnMesh(nn.Module):
    """Layers of products on two dimensions of a mesh: batches are spread over the first, and so are weights,
    which are gathered over it; products over the second.
    """

    def __init__(self, mesh: DeviceMesh, inner: Mlps) -> None:
        super().__init__()
        self.mesh, self.inner = mesh, inner
        spread = {"up.weight": (1, 0), "up.bias": (None, 0), "down.weight": (0, 1), "norm.weight": (0, None)}
        for layer in inner.layers:
            for name, weight in list(layer.named_parameters()):
                first, second = spread.get(name, (None, None))
                part, own = name.split(".")
                at = [Replicate() if each is None else Shard(each) for each in (first, second)]
                made = nn.Parameter(distribute_tensor(weight.detach(), mesh, at))
                setattr(getattr(layer, part), own, made)
                layout = Layouts([Replicate(), at[1]])
                parametrize.register_parametrization(getattr(layer, part), own, layout, unsafe=True)

    def forward(self, x: Tensor) -> Tensor:
        spread = [Shard(0), Replicate()]
        full: Any = DTensor.from_local(x, self.mesh, spread)
        for layer in self.inner.layers:
            full = full + layer(full).redistribute(placements=spread)
        return full.to_local().square().mean()


class Averaged(torch.autograd.Function):
    """The tensor itself, whose gradient is averaged over a group by a functional collective."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return functional.all_reduce(gradient, "sum", ctx.group) / 2, None


class AveragedWeight(nn.Module):
    """A parametrization whose gradient is averaged over a group."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, weight: Any) -> Tensor:
        average = cast("Any", Averaged.apply)
        if not isinstance(weight, DTensor):
            return average(weight, self.group)
        local = average(weight.to_local(), self.group)
        return DTensor.from_local(local, weight.device_mesh, weight.placements)


def _replicas(mesh: DeviceMesh) -> nn.Module:
    """Make tensor-parallel layers whose gradients are averaged over the mesh's first dimension."""
    module = _tensor_parallel(mesh["tp"])
    for part in list(module.modules()):
        for name in [name for name, _weight in part.named_parameters(recurse=False)]:
            own = AveragedWeight(mesh.get_group("dp"))
            parametrize.register_parametrization(part, name, own, unsafe=True)
    return module


def _tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    module = Mlps()
    for layer in module.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return module


def _simple_fsdp(mesh: DeviceMesh) -> nn.Module:
    module = Mlps()
    for part in list(module.modules()):
        for name, weight in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(distribute_tensor(weight.detach(), mesh, [Shard(0)])))
            parametrize.register_parametrization(part, name, Gathered(), unsafe=True)
    return module


class Attention(nn.Module):
    """Causal attention, in which each rank may have some of the heads."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.each = WIDE // heads
        self.q, self.k, self.v = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        many, length, _wide = x.shape
        q, k, v = (
            each(x).view(many, length, -1, self.each).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(made.transpose(1, 2).reshape(many, length, -1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDE, 96, bias=False), nn.Linear(WIDE, 96, bias=False)
        self.down = nn.Linear(96, WIDE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        own = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(own)) * self.up(own))


class Blocks(nn.Module):
    """A small language model."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.layers = nn.ModuleList([Block() for _ in range(depth)])
        self.norm, self.head = nn.RMSNorm(WIDE), nn.Linear(WIDE, WORDS, bias=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        made = self.head(self.norm(x)).flatten(0, 1)
        return nn.functional.cross_entropy(made, labels.flatten())


def _sequence_parallel(mesh: DeviceMesh) -> nn.Module:
    """Make a model whose sequence is spread between the products too."""
    module = Blocks()
    layers: dict[str, Any] = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(module, mesh, layers)
    block: dict[str, Any] = {
        "first": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "second": SequenceParallel(),
        "gate": ColwiseParallel(input_layouts=Shard(1)),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in module.layers:
        parallelize_module(layer, mesh, block)
    return module


def _llama(mesh: DeviceMesh) -> nn.Module:
    """Make transformers' Llama with tensor-parallel layers."""
    module: Any = sharded_models.make("llama")
    plan: dict[str, Any] = {
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for layer in module.model.layers:
        parallelize_module(layer, mesh, plan)
    return module


def make(kind: str, size: int = 2) -> nn.Module:
    """Make a model from a fixed seed, equal on all ranks."""
    torch.manual_seed(0)
    if kind in MESHES:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return OnMesh(mesh, Mlps()) if kind == "mesh" else _replicas(mesh)
    mesh = init_device_mesh("cpu", (size,))
    if kind == "plain":
        return Plain()
    if kind == "simple_fsdp":
        return _simple_fsdp(mesh)
    if kind == "tensor":
        return _tensor_parallel(mesh)
    return _sequence_parallel(mesh) if kind == "sequence" else _llama(mesh)


def batch(kind: str, rank: int, step: int) -> dict[str, Tensor]:
    """Make the batch of a step: one on all ranks, but for data parallelism."""
    data = rank if kind in ("simple_fsdp", "plain") else rank // 2 if kind in MESHES else 0
    drawn = torch.Generator().manual_seed(100 + 1000 * step + data)
    if kind in ("llama", "sequence"):
        words = torch.randint(1, WORDS, (EACH, LENGTH), generator=drawn)
        return {"input_ids" if kind == "llama" else "words": words, "labels": words.clone()}
    return {"x": torch.randn(ROWS, WIDE, generator=drawn)}
