"""Five small models with their batches, and the same training by eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from iterations import UNet, gpt2, llama, vit
from memplan.devices.sharded.local_tensors import local_tensor
from torch import Tensor, nn
from torch.nn import functional

BATCHES = 4

State = dict[str, Tensor]


class Lora(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices."""

    def __init__(self, whole: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.whole = whole.requires_grad_(False)
        self.down = nn.Linear(whole.in_features, rank, bias=False)
        self.up = nn.Linear(rank, whole.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x) + self.up(functional.dropout(self.down(x), 0.1, self.training))


class Recurrent(nn.Module):
    """Two layers of LSTM cells, with dropout between them."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(16, width), nn.LSTMCell(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        states: list[Any] = [None, None]
        for step in x.unbind(1):
            states[0] = self.first(step, states[0])
            states[1] = self.second(functional.dropout(states[0][0], 0.1, self.training), states[1])
        return self.last(states[1][0])


def lora() -> nn.Module:
    model = llama().module.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and name.endswith(("q_proj", "v_proj", "up_proj", "down_proj")):
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, Lora(layer))
    return model


def tokens() -> dict[str, Tensor]:
    given = torch.randint(3, 99, (2, 12))
    return {"input_ids": given, "labels": given.clone()}


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(2, (2,))}


class Model(NamedTuple):
    """A model to train.

    make: makes the module. batch: makes keywords of its call, and `targets` of its loss function.
    loss_fn: None if it returns its loss.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]
    loss_fn: Callable[..., Tensor] | None = None

    def loss(self, module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if self.loss_fn is None:
            return module(**batch).loss
        return self.loss_fn(module(batch["x"]), batch["targets"])


MODELS = {
    "U-Net with batch norms": Model(
        UNet,
        lambda: {"x": torch.randn(2, 3, 16, 16), "targets": torch.randint(2, (2, 16, 16))},
        functional.cross_entropy,
    ),
    "GPT-2": Model(lambda: gpt2().module, tokens),
    "ViT": Model(lambda: vit().module, images),
    "Llama, LoRA": Model(lora, tokens),
    "LSTM": Model(
        Recurrent,
        lambda: {"x": torch.randn(8, 6, 16), "targets": torch.randn(8, 1)},
        functional.mse_loss,
    ),
}


def made(name: str, rank: int = 0) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """Return a model in train mode, and the batches of a rank, which take turns."""
    torch.manual_seed(7)
    model = MODELS[name]
    module = model.make().train()
    return module, [model.batch() for _ in range((rank + 1) * BATCHES)][-BATCHES:]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    trained = [each for each in module.parameters() if each.requires_grad]
    return torch.optim.AdamW(trained, 1e-2, foreach=False)


def seeded(name: str) -> tuple[nn.Module, torch.optim.Optimizer, list[dict[str, Tensor]]]:
    """Return a model in train mode, its optimizer, and the batches that take turns."""
    module, batches = made(name)
    return module, adamw(module), batches


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Return copies of all that training changes, by name; of what is spread over ranks, this one's share."""
    found = {name: local_tensor(each.detach()).clone() for name, each in module.state_dict().items()}
    for number, states in optimizer.state_dict()["state"].items():
        found |= {f"{number} {name}": local_tensor(each).clone() for name, each in states.items()}
    return found


class Eager(NamedTuple):
    """A training by eager PyTorch.

    losses: of each iteration. states: before each of these iterations, and after the last.
    """

    losses: list[Tensor]
    states: list[State]


@cache
def eager(name: str, iterations: int) -> Eager:
    """Train a model by eager PyTorch."""
    module, optimizer, batches = seeded(name)
    losses, states = list[Tensor](), [state_of(module, optimizer)]
    for turn in range(iterations):
        torch.manual_seed(turn)
        loss = MODELS[name].loss(module, batches[turn % BATCHES])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        states.append(state_of(module, optimizer))
    return Eager(losses, states)
