"""Loops of other packages with FSDP2, planned by one call: the same losses and weights, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import memplan
import pytest
import torch
from accelerate_on_cpus import free_port, fsdp_on_cpus, two_replicas
from memplan.training.accelerated import inside_accelerated, warn_of_ddp, without_accelerate
from ranks import ranks
from sharded_training import error
from torch import nn
from torch.distributed.tensor import DTensor

EXAMPLES = Path(__file__).parents[2] / "examples"


SAVED = {"save_strategy": "epoch", "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
"""Arguments of a Trainer that saves checkpoints by ranks."""


def trained(name: str, planned: bool, options: dict[str, Any]) -> tuple[nn.Module, list[float]]:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
    options = dict(options)
    if (dtype := options.pop("dtype", None)) is not None:
        torch.set_default_dtype(dtype)  # of the models that are made from here on
    if options.pop("replicas", False):
        options["parallelism_config"] = two_replicas()
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
    # An evaluation leaves the weights of the root whole.
    meshes = {each.device_mesh.shape for each in known.parameters() if isinstance(each, DTensor)}
    assert meshes == {(2, 2) if "replicas" in options else (2,)}
    module, own = trained(name, True, options)
    weights = module.state_dict()
    return losses, own, [key for key, each in known.state_dict().items() if error(each, weights[key])]


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
        ("accelerate", "train_fsdp_accelerate", {"cpu": True, "replicas": True}, 2),
    ],
    ids=[
        "a plain loop",
        "accelerate",
        "Trainer",
        "Trainer, not clipped",
        "Trainer, bfloat16",
        "accelerate, mixed",
        "Trainer, mixed",
        "accelerate, replicas",
    ],
)
def test_a_loop_with_fsdp2_is_planned_bit_by_bit(
    tmp_path: Path, package: str, name: str, options: dict[str, Any], count: int
) -> None:
    """Losses, and of the Trainer what it logs: norms and the loss of its evaluation, too."""
    pytest.importorskip("transformers")
    pytest.importorskip(package)
    size = 4 if "replicas" in options else 2
    for row in ranks(both, tmp_path, name, str(tmp_path), free_port(), options, size=size):
        assert not isinstance(row, str), row
        losses, own, apart = row
        assert len(own) == count
        assert own == losses[:count] if options.get("max_grad_norm") is None else set(own) <= set(losses)
        assert apart == []
    assert ("save_strategy" in options) == any(tmp_path.glob("memplan-example/checkpoint-3/*model*/*.distcp"))


def accumulating(planned: bool, *, within: bool) -> tuple[nn.Module, list[float]]:
    """Train with two batches per update. Return model and losses. within: accumulate, if planned."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import GradientAccumulationPlugin
    from torch.utils.data import DataLoader
    from train_data import sentences, small_gpt2

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    counted = GradientAccumulationPlugin(num_steps=2, sync_each_batch=not planned)
    accelerator = Accelerator(fsdp_plugin=plugin, cpu=True, gradient_accumulation_plugin=counted)
    texts: Any = sentences(32)
    model, texts = small_gpt2(dropout=0.0), DataLoader(texts, batch_size=4)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), texts
    )
    losses = list[float]()
    if planned:
        options: dict[str, Any] = {"optimizer": optimizer, "gradient_accumulation_steps": 2}
        step = memplan.optimize(model, next(iter(loader)), budget="75%", time_limit=1, cache=False, **options)
        for batch in loader:
            with accelerator.accumulate(model) if within else nullcontext():
                losses.append(step(batch).item())
        return model, losses
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return model, losses


def refused_and_tried(rank: int, port: int) -> tuple[str, bool, list[str]]:
    """Return the line for a step within accumulate, whether losses are FSDP2's without, and other weights."""
    sys.path.insert(0, str(EXAMPLES))
    fsdp_on_cpus(rank, port)
    known, losses = accumulating(False, within=True)
    with pytest.raises(memplan.MismatchError) as refused:
        accumulating(True, within=True)
    module, own = accumulating(True, within=False)
    weights = module.state_dict()
    apart = [key for key, each in known.state_dict().items() if error(each, weights[key])]
    return str(refused.value), own == losses, apart


@pytest.mark.scripts
def test_a_step_within_accelerates_accumulate_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    for row in ranks(refused_and_tried, tmp_path, free_port()):
        line, same, apart = row
        assert line == (
            "the plan scatters the gradients of each batch, and counts the batches of an update itself: call "
            "the step without accelerator.accumulate, no_sync and set_requires_gradient_sync"
        )
        assert same
        assert apart == []


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
    # Each rank prints its number and its losses; their lines may run into each other.
    assert found.stdout.count("[") == 2, found.stdout


def trainer(**options: Any) -> Any:
    """Make what optimize_trainer looks at of a Trainer whose accelerate shards."""
    from transformers import Trainer

    made: Any = object.__new__(Trainer)
    made.is_deepspeed_enabled, made.is_fsdp_enabled = False, True
    plugin = SimpleNamespace(fsdp_version=options.get("version", 2))
    state, mixed = SimpleNamespace(fsdp_plugin=plugin), options.get("mixed", "no")
    parallel = SimpleNamespace(cp_size=options.get("context", 1))
    made.accelerator = SimpleNamespace(state=state, mixed_precision=mixed, parallelism_config=parallel)
    made.args = SimpleNamespace(predict_with_generate=options.get("generate", False))
    made.compute_metrics = options.get("metrics")
    return made


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"version": 1}, r"fsdp_config has version 1 of FSDP, and 2 is supported: \{'version': 2\}"),
        ({"mixed": "fp16"}, r"mixed precision in fp16 are not planned together: give the trainer bf16=True"),
        ({"context": 2}, "not planned: leave cp_size=2 out, and give these ranks to dp_shard_size"),
        ({"generate": True}, "predict_with_generate=True are not planned together: leave it out, and gen"),
        ({"metrics": len, "lengths": 16}, "would be as long as the padded batch: leave pad_to_lengths out"),
    ],
)
def test_what_a_trainers_fsdp_can_not_be_is_refused(options: dict[str, Any], line: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(memplan.InputError, match=line) as refused:
        memplan.optimize_trainer(trainer(**options), budget="75%", pad_to_lengths=options.get("lengths"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("scaler", "steps", "line"),
    [
        (None, 2, "accelerate accumulates gradients over 2 batches, and the plan over 1: give optimize"),
        (object(), 1, "accelerate scales losses in float16"),
    ],
)
def test_what_accelerates_optimizer_can_not_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, scaler: Any, steps: int, line: str
) -> None:
    pytest.importorskip("accelerate")
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.state import AcceleratorState
    from memplan.training.options import Options

    optimizer: Any = object.__new__(AcceleratedOptimizer)
    optimizer.optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
    optimizer.scaler, optimizer.gradient_state = scaler, SimpleNamespace(num_steps=steps)
    with pytest.raises(memplan.InputError, match=line):
        inside_accelerated(Options(budget="75%", optimizer=optimizer))
    optimizer.scaler = None
    state: Any = AcceleratorState
    with monkeypatch.context() as patched:
        patched.setitem(state._shared_state, "parallelism_config", SimpleNamespace(sp_size=2))
        with pytest.raises(memplan.InputError, match="leave sp_size=2 out"):
            inside_accelerated(Options(budget="75%", optimizer=optimizer))
    given = Options(budget="75%", optimizer=optimizer, gradient_accumulation_steps=steps)
    assert inside_accelerated(given) is optimizer.optimizer
    assert without_accelerate(given) is optimizer.optimizer
    assert without_accelerate(given.replaced(gradient_accumulation_steps=steps + 1)) is optimizer  # as before
    optimizer.scaler = object()
    assert without_accelerate(given) is optimizer
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_ddp(cast("Any", object()))
        assert not said
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        warn_of_ddp(None)
        assert not said
        warn_of_ddp(cast("Any", object()))
    assert "accelerate shards on GPUs alone: asked for FSDP, it has made a DistributedDataParallel" in str(
        said[0].message
    )
