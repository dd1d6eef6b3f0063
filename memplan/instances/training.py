"""Training of a language model: its configuration, and the rates of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from ..graphs.errors import InputError
from .transformer_parts import GROUPS


@dataclass(frozen=True)
class Rates:
    """Rates of a machine.

    flops: attained FLOP/s.
    bandwidth: bytes/s of device memory, None to ignore it.
    update_device, update_host: bytes of weight gradients per second in an optimizer step.
    """

    flops: float
    update_device: float
    update_host: float
    bandwidth: float | None = None


@dataclass(frozen=True)
class Training:
    """Configuration of a training iteration.

    batch: sequences per iteration.
    sequence: tokens per sequence.
    weight_bytes, activation_bytes, state_bytes: bytes per element.
    optimizer: adam, sgd or none (the gradients are results).
    update: in-backward (once a gradient is complete and its weight no longer read) or after.
    granularity: layer, sublayer or operation.
    keep_scores: whether attention keeps its scores.
    """

    batch: int
    sequence: int
    weight_bytes: int = 2
    activation_bytes: int = 2
    state_bytes: int = 4
    optimizer: str = "adam"
    update: str = "in-backward"
    granularity: str = "sublayer"
    keep_scores: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("optimizer", ("adam", "sgd", "none")),
            ("update", ("in-backward", "after")),
            ("granularity", tuple(GROUPS)),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be {', '.join(allowed)}, not {getattr(self, name)!r}")
        for name in ("batch", "sequence", "weight_bytes", "activation_bytes", "state_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, not {getattr(self, name)}")

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence
