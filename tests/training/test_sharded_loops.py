"""Loops of other packages with FSDP2, planned by one call: the same losses and weights, bit by bit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memplan
import pytest
import torch
from memplan.training.accelerated import inside_accelerated
from memplan.training.trainer import PlannedLoss
from ranks import ranks
from sharded_training import error
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"


SAVED = {"save_strategy": "epoch", "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
"""Arguments of a Trainer that saves checkpoints by ranks. Whole ones gloo can't gather, by FSDP2 neither."""


def fsdp_on_cpus(rank: int, port: int) -> None:
    """Let accelerate shard on CPUs, as it does on GPUs."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    begin: Any = AcceleratorState.__init__

    def begin_sharded(self: Any, *given: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        begin(self, *given, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = begin_sharded


def trained(name: str, planned: bool, options: dict[str, Any]) -> tuple[nn.Module, list[float]]:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
    options = dict(options)
    if (dtype := options.pop("dtype", None)) is not None:
        torch.set_default_dtype(dtype)  # of the models that are made from here on
    return import_module(name).train(planned, **options)


def both(
    rank: int, name: str, folder: str, port: int, options: dict[str, Any]
) -> tuple[list[float], list[float], list[str]]:
    """Return the losses of FSDP2 and of a plan, and the weights that differ. folder: of what they save."""
    tempfile.tempdir = folder
    sys.path.insert(0, str(EXAMPLES))
    if name != "train_fsdp":
        fsdp_on_cpus(rank, port)
    known, losses = trained(name, False, options)
    assert type(known).__name__.startswith("FSDP")
    module, own = trained(name, True, options)
    weights = module.state_dict()
    return losses, own, [key for key, each in known.state_dict().items() if error(each, weights[key])]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("package", "name", "options", "count"),
    [
        ("torch", "train_fsdp", {}, 9),
        ("accelerate", "train_fsdp_accelerate", {"cpu": True}, 3),
        ("accelerate", "train_fsdp_trainer", {"use_cpu": True, **SAVED}, 7),
        ("accelerate", "train_fsdp_trainer", {"use_cpu": True, "max_grad_norm": 0.0}, 4),
        ("accelerate", "train_fsdp_trainer", {"use_cpu": True, "dtype": torch.bfloat16}, 7),
        ("accelerate", "train_fsdp_accelerate", {"cpu": True, "mixed_precision": "bf16"}, 3),
        ("accelerate", "train_fsdp_trainer", {"use_cpu": True, "bf16": True, **SAVED}, 7),
    ],
    ids=[
        "a plain loop",
        "accelerate",
        "Trainer",
        "Trainer, not clipped",
        "Trainer, bfloat16",
        "accelerate, mixed",
        "Trainer, mixed",
    ],
)
def test_a_loop_with_fsdp2_is_planned_bit_by_bit(
    tmp_path: Path, package: str, name: str, options: dict[str, Any], count: int
) -> None:
    """Losses, and of the Trainer what it logs: norms and the loss of its evaluation, too."""
    pytest.importorskip("transformers")
    pytest.importorskip(package)
    for row in ranks(both, tmp_path, name, str(tmp_path), free_port(), options):
        assert not isinstance(row, str), row
        losses, own, apart = row
        assert len(own) == count
        assert own == losses[:count] if options.get("max_grad_norm") is None else set(own) <= set(losses)
        assert apart == []
    assert ("save_strategy" in options) == any(tmp_path.glob("memplan-example/checkpoint-3/*model*/*.distcp"))


@pytest.mark.scripts
def test_the_example_runs_under_torchrun() -> None:
    pytest.importorskip("transformers")
    place = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", place]
    found = subprocess.run(
        [sys.executable, *command, str(EXAMPLES / "train_fsdp.py")],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert sorted(line[:3] for line in found.stdout.splitlines()) == ["0 [", "1 ["]


def trainer(**options: Any) -> Any:
    """Make what optimize_trainer looks at of a Trainer whose accelerate shards."""
    from transformers import Trainer

    made: Any = object.__new__(Trainer)
    made.is_deepspeed_enabled, made.is_fsdp_enabled = False, True
    plugin = SimpleNamespace(fsdp_version=options.get("version", 2))
    state, mixed = SimpleNamespace(fsdp_plugin=plugin), options.get("mixed", "no")
    made.accelerator = SimpleNamespace(state=state, mixed_precision=mixed)
    steps = options.get("steps", 1)
    made.args = SimpleNamespace(gradient_accumulation_steps=steps, per_device_train_batch_size=4)
    return made


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"version": 1}, r"fsdp_config has version 1 of FSDP, and 2 is supported: \{'version': 2\}"),
        ({"mixed": "fp16"}, r"mixed precision in fp16 are not planned together: give the trainer bf16=True"),
        ({"steps": 2}, r"gradient_accumulation_steps=2 are not planned together: .*train_batch_size=8"),
    ],
)
def test_what_a_trainers_fsdp_can_not_be_is_refused(options: dict[str, Any], line: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(memplan.InputError, match=line) as refused:
        memplan.optimize_trainer(trainer(**options), budget="75%")
    assert "\n" not in str(refused.value)


def test_metrics_of_a_planned_evaluation_are_refused() -> None:
    planned: Any = object.__new__(PlannedLoss)
    planned._trainer = lambda: SimpleNamespace(compute_metrics=len)
    with pytest.raises(memplan.MemplanError, match="has the loss alone: leave compute_metrics out"):
        planned._evaluated({}, True)


@pytest.mark.parametrize(
    ("scaler", "steps", "line"),
    [
        (None, 2, "accelerate accumulates gradients over 2 batches, and the plan over 1: give optimize"),
        (object(), 1, "accelerate scales losses in float16"),
    ],
)
def test_what_accelerates_optimizer_can_not_be_is_refused(scaler: Any, steps: int, line: str) -> None:
    pytest.importorskip("accelerate")
    from accelerate.optimizer import AcceleratedOptimizer
    from memplan.training.options import Options

    optimizer: Any = object.__new__(AcceleratedOptimizer)
    optimizer.optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
    optimizer.scaler, optimizer.gradient_state = scaler, SimpleNamespace(num_steps=steps)
    with pytest.raises(memplan.InputError, match=line):
        inside_accelerated(Options(budget="75%", optimizer=optimizer))
    optimizer.scaler = None
    given = Options(budget="75%", optimizer=optimizer, gradient_accumulation_steps=steps)
    assert inside_accelerated(given) is optimizer.optimizer
