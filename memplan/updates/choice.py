"""The optimizer that a command line or a graph's `source` names, made for a module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..graphs.files.fields import check_fields, mapping
from ..graphs.transformations.updates import When
from ..model.clipping import Clipping, parse_norm
from ..model.iteration import Iteration, Updates
from .catalogue import OPTIMIZERS
from .masters import has_low_weights
from .several import SeveralOptimizers


@dataclass(frozen=True)
class OptimizerChoice:
    """A planned optimizer by name, with hyperparameters.

    name: of a file in `optimizers/`.
    update: when weights are updated.
    clip_norm: of all gradients; None without clipping.
    early_updates: whether updates do not wait for the norm of all, see early.py.
    bucket_size: the most bytes of small weights that are updated together; None updates each alone.
    block_size: the most bytes of a large weight that are updated at once; None updates each whole.
    master_weights: whether weights of 16 bits have float32 masters among their states, see masters.py.
    fused: by PyTorch's fused kernels, if it has some and they take the parameters: several times as fast,
    with other bits.
    The rest are the optimizer's own; None is its default.
    """

    name: str
    update: When = "in-backward"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    amsgrad: bool | None = None
    nesterov: bool | None = None
    clip_norm: float | None = None
    early_updates: bool | None = None
    bucket_size: int | None = None
    block_size: int | None = None
    master_weights: bool | None = None
    fused: bool = True

    def __post_init__(self) -> None:
        if self.early_updates and self.clip_norm is None:
            raise InputError("--early-updates goes with --clip-norm: without it no update waits")
        if self.early_updates and self.update != "in-backward":
            raise InputError(
                f"--early-updates and --update {self.update} contradict each other: leave one out"
            )

    def load(self) -> None:
        """Import what the optimizer needs. Raises InputError for a package that is not installed."""
        described = OPTIMIZERS.get(self.name)
        if described is not None and described.package:
            try:
                import_module(described.package)
            except ImportError:
                package = described.package.partition(".")[0]
                raise InputError(f"{self.name} needs the package {package}: install it") from None

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer. Raises InputError for a hyperparameter that it refuses or does not have."""
        # Choices of memplan, not arguments of the optimizer's class.
        general = (
            *("name", "update", "clip_norm", "early_updates", "bucket_size", "block_size", "master_weights"),
            "fused",
        )
        given = {k: v for k, v in asdict(self).items() if v is not None and k not in general}
        if (described := OPTIMIZERS.get(self.name)) is None:
            raise InputError(f"unknown optimizer {self.name!r}: known are {', '.join(OPTIMIZERS)}")
        if foreign := given.keys() - described.hyperparameters:
            raise InputError(f"{self.name} has no {min(foreign)}")
        self.load()
        numbers = [value for name, value in given.items() if name != "betas"]
        if not all(map(isfinite, [*numbers, *(self.betas or ())])):
            raise InputError(f"{self.name}: a number is not finite")
        try:
            make: Any = described.make
            weights = [p for p in parameters if p.requires_grad]
            trained = [p for p in weights if described.takes(p)]
            others = [p for p in weights if not described.takes(p)]
            # Muon takes matrices alone: biases and norms go to AdamW, as its author does.
            if others and trained:
                rest = OptimizerChoice("adamw", lr=self.lr, weight_decay=self.weight_decay, fused=self.fused)
                return SeveralOptimizers([make(trained, **given), rest.optimizer(others)])
            kernels: dict[str, bool] = {}
            if described.has_fused:
                fused = self.fused and all(map(_takes_fused_kernels, trained))
                # foreach=False: kernels for lists take all parameters at once, a plan updates each by itself.
                kernels = {"fused": True} if fused else {"foreach": False}
            return make(trained, **kernels, **given)
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from None

    def document(self) -> dict[str, Any]:
        """Return the choice as a graph's `source` has it; `choice_of` reads it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def choice_of(document: object) -> OptimizerChoice:
    """Read a choice from a graph's `source`. One without `fused` is older than the choice of it, and without
    fused kernels. Raises InputError, one line."""
    try:
        row = dict(mapping(document, "it"))
        check_fields(row, ("name", "update"), tuple(field.name for field in fields(OptimizerChoice)[2:]))
        name, update, betas = row.pop("name"), row.pop("update"), row.pop("betas", None)
        sizes = {field: int(row.pop(field)) for field in ("bucket_size", "block_size") if field in row}
        # False: graphs without the entry were measured without fused kernels.
        switches = {"fused": bool(row.pop("fused", False))}
        others = ("amsgrad", "nesterov", "early_updates", "master_weights")
        switches |= {field: bool(row.pop(field)) for field in others if field in row}
        if name not in OPTIMIZERS or update not in ("in-backward", "after"):
            raise ValueError(f"no optimizer {name!r} that updates {update!r}")
        pair = None if betas is None else (float(betas[0]), float(betas[1]))
        numbers = {field: float(value) for field, value in row.items()}
        return OptimizerChoice(name, update, betas=pair, **sizes, **numbers, **switches)
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(f"source.optimizer: {error}") from None


def updated(iteration: Iteration, choice: OptimizerChoice | None) -> Iteration:
    """Return the iteration with the chosen updates of all parameters that require a gradient.

    Raises InputError for masters of weights that need none.
    """
    if choice is None:
        return iteration
    optimizer = choice.optimizer(iteration.module.parameters())
    if choice.master_weights and not has_low_weights(iteration.module):
        raise InputError(
            "--master-weights: no weight that is trained is bfloat16 or float16, so none has a master: make "
            "the model in bfloat16, by .bfloat16() in its code, or by --dtype bfloat16 of a configuration"
        )
    clipping = None if choice.clip_norm is None else Clipping(parse_norm(choice.clip_norm))
    updates = Updates(
        optimizer=optimizer,
        when=choice.update,
        clipping=clipping,
        masters=bool(choice.master_weights),
        early=bool(choice.early_updates),
        bucket=choice.bucket_size or 0,
        block=choice.block_size or 0,
    )
    return iteration._replace(updates=updates)


def _takes_fused_kernels(parameter: Tensor) -> bool:
    """Tell whether the tensor has real numbers that fill their memory: fused kernels pass over that in
    memory order.
    """
    return parameter.is_floating_point() and torch.empty_like(parameter).stride() == parameter.stride()
