"""transformers' Trainer with FSDP2: accumulation, metrics, checkpoints are the same planned, bit by bit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import memplan
import pytest
import torch
from accelerate_on_cpus import free_port, fsdp_on_cpus, two_replicas
from memplan.graphs.errors import MismatchError
from memplan.training.sharded_trainer import ShardedLoss
from ranks import ranks
from sharded_training import error
from torch import Tensor
from torch.nn import functional

EXAMPLES = Path(__file__).parents[2] / "examples"

SHARDED, FULL = "SHARDED_STATE_DICT", "FULL_STATE_DICT"

EACH_BATCH: dict[str, Any] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
"""Settings of accelerate by which FSDP2 scatters each batch's gradients: the plan's order of sums."""

_LEFT_OUT = ("_runtime", "_per_second", "total_flos", "_preparation_time")


def begin(rank: int, port: int) -> None:
    sys.path.insert(0, str(EXAMPLES))
    fsdp_on_cpus(rank, port)


def made(folder: Path, planned: bool, **options: Any) -> Any:
    """Make a trainer of 5 batches on each of two ranks, whose texts have different numbers of labels."""
    from accelerate.state import AcceleratorState
    from train_data import sentences, small_gpt2
    from transformers import Trainer, TrainingArguments

    AcceleratorState._reset_state(True)
    names = ("compute_metrics", "preprocess_logits_for_metrics", "compute_loss_func")
    others = {name: options.pop(name) for name in names if name in options}
    arguments: dict[str, Any] = {
        "fsdp": True,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **deepcopy(options),  # the Trainer changes accelerate's
    }
    texts = sentences(40)
    for number, text in enumerate(texts):
        text["labels"] = text["labels"].clone()
        text["labels"][: number % 9] = -100
    settings = TrainingArguments(str(folder), **arguments)
    sets: Any = {"train_dataset": texts, "eval_dataset": sentences(10)}  # lists: what a Trainer takes as well
    trainer = Trainer(small_gpt2(dropout=0.0), settings, **sets, **others)
    if planned:
        memplan.optimize_trainer(trainer, budget="75%", time_limit=1, cache=False)
    return trainer


def logged(trainer: Any) -> list[dict[str, Any]]:
    """Return what the trainer has logged, without times."""
    return [
        {name: each for name, each in row.items() if not name.endswith(_LEFT_OUT)}
        for row in trainer.state.log_history
    ]


Trained = tuple[Any, list[dict[str, Any]]]
Case = Callable[[Path, bool], Trained]


def trained(folder: Path, planned: bool, **options: Any) -> Trained:
    trainer = made(folder, planned, **options)
    trainer.train()
    return trainer, logged(trainer)


def accumulated(folder: Path, planned: bool) -> Trained:
    """Losses divided by the labels of all batches; the last update has one batch of two."""
    options = {"gradient_accumulation_steps": 2, "accelerator_config": EACH_BATCH, "num_train_epochs": 2}
    return trained(folder, planned, **options)


def averaged(folder: Path, planned: bool) -> Trained:
    """Losses divided by the number of batches, of a model that does not count labels: 3, then 2."""
    trainer = made(folder, planned, gradient_accumulation_steps=3, accelerator_config=EACH_BATCH)
    trainer.model_accepts_loss_kwargs = False
    trainer.train()
    return trainer, logged(trainer)


def token_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


def mixed(folder: Path, planned: bool) -> Trained:
    options = {"compute_loss_func": token_loss, "bf16": True, "max_grad_norm": 0.5}
    return trained(folder, planned, gradient_accumulation_steps=2, accelerator_config=EACH_BATCH, **options)


def smooth(folder: Path, planned: bool) -> Trained:
    """Smooth labels. The Trainer shifts those of a class that it knows, and FSDP2 changes the class."""
    options: dict[str, Any] = {"label_smoothing_factor": 0.1, "average_tokens_across_devices": False}
    options |= {"gradient_accumulation_steps": 2, "accelerator_config": EACH_BATCH}
    trainer = made(folder, planned, **options)
    trainer.model._get_name = lambda: "GPT2LMHeadModel"
    trainer.train()
    return trainer, logged(trainer)


def sums(prediction: Any) -> dict[str, float]:
    logits, labels = prediction.predictions, prediction.label_ids
    right = logits[:, :-1].argmax(-1) == labels[:, 1:]
    return {"right": float(right.mean()), "sum": float(logits.astype("float64").sum()), "rows": len(logits)}


def measured(folder: Path, planned: bool) -> Trained:
    """Metrics before, during and after training."""
    return trained(folder, planned, compute_metrics=sums, eval_on_start=True, eval_accumulation_steps=1)


def predicted(folder: Path, planned: bool) -> Trained:
    """Metrics of what a function has made of logits; and predictions without metrics, after losses alone."""

    def total(prediction: Any) -> dict[str, float]:
        return {"total": float(prediction.predictions.sum())}

    trainer, rows = trained(
        folder,
        planned,
        compute_metrics=total,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    trainer.compute_metrics = trainer.preprocess_logits_for_metrics = None
    rows += [{"loss": trainer.evaluate()["eval_loss"]}]
    found = trainer.predict(trainer.eval_dataset)
    return trainer, [*rows, {"logits": found.predictions.tolist(), "labels": found.label_ids.tolist()}]


def again(folder: Path, planned: bool) -> Trained:
    """Training twice. accelerate can't prepare a model of FSDP2 twice: that is left out."""
    trainer, rows = trained(folder, planned)
    if not planned:
        own: Any = trainer.accelerator.prepare
        trainer.accelerator.prepare = lambda *objects: objects if len(objects) == 2 else own(*objects)
        trainer.accelerator.free_memory = list
    trainer.train()
    return trainer, rows + logged(trainer)


def resumed(kind: str, folder: Path, planned: bool) -> Trained:
    """Each goes on from a checkpoint that the other has saved; the plan also with a model that it has."""
    saving = {"save_strategy": "steps", "save_steps": 1, "fsdp_config": {"state_dict_type": kind}}
    saving |= {"gradient_accumulation_steps": 2, "accelerator_config": EACH_BATCH}
    made(folder, not planned, **saving).train()
    trainer = made(folder / "other", planned, **{**saving, "save_strategy": "no"})
    for _ in range(2 if planned else 1):
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    return trainer, logged(trainer)


def best(folder: Path, planned: bool) -> Trained:
    """The first epoch's checkpoint is loaded at the end."""
    trainer, rows = trained(
        folder,
        planned,
        num_train_epochs=2,
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,
        fsdp_config={"state_dict_type": FULL},
    )
    assert trainer.state.best_global_step == 5
    return trainer, [*rows, {"loss": trainer.evaluate()["eval_loss"]}]


def replicas(folder: Path, planned: bool) -> Trained:
    """Two replicas of two ranks, clipped; a checkpoint of all ranks is saved."""
    options = {"save_strategy": "epoch", "fsdp_config": {"state_dict_type": SHARDED}, "eval_strategy": "no"}
    trainer = made(folder, planned, parallelism_config=two_replicas(), **options)
    trainer.train()
    assert next(trainer.model.parameters()).device_mesh.shape == (2, 2)
    assert any(folder.glob("checkpoint-*/*model*/*.distcp"))
    return trainer, logged(trainer)


def resumed_shares(folder: Path, planned: bool) -> Trained:
    return resumed(SHARDED, folder, planned)


def resumed_whole(folder: Path, planned: bool) -> Trained:
    return resumed(FULL, folder, planned)


def both(rank: int, folder: str, port: int, case: Case) -> tuple[list[Any], list[Any], dict[str, float]]:
    """Return what FSDP2 and a plan have logged, and the weights that differ."""
    tempfile.tempdir = folder
    begin(rank, port)
    known, rows = case(Path(folder) / "fsdp", False)
    planned, own = case(Path(folder) / "planned", True)
    weights = planned.model.state_dict()
    apart = {name: error(each, weights[name]) for name, each in known.model.state_dict().items()}
    return rows, own, {name: each for name, each in apart.items() if each}


@pytest.mark.scripts
@pytest.mark.parametrize(
    "case",
    [
        *(accumulated, averaged, mixed, smooth, measured, predicted, again),
        *(resumed_shares, resumed_whole, best, replicas),
    ],
)
def test_a_trainer_with_fsdp2_is_planned_bit_by_bit(tmp_path: Path, case: Case) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    size = 4 if case is replicas else 2
    for row in ranks(both, tmp_path, str(tmp_path), free_port(), case, size=size):
        assert not isinstance(row, str), row
        rows, own, apart = row
        assert len(rows) >= 4
        assert own == rows
        assert apart == {}


def apart(rank: int, folder: str, port: int) -> float:
    """Return by how much weights differ from FSDP2's, which adds gradients up before it scatters them."""
    begin(rank, port)
    options = {"gradient_accumulation_steps": 2, "optim": "sgd", "max_grad_norm": 0.0}
    known, _rows = trained(Path(folder), False, **options)
    planned, _own = trained(Path(folder), True, **options)
    weights = planned.model.state_dict()
    return max(error(each, weights[name]) for name, each in known.model.state_dict().items())


@pytest.mark.scripts
def test_sums_that_fsdp2_scatters_at_an_updates_end_differ_by_their_rounding(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    for row in ranks(apart, tmp_path, str(tmp_path), free_port()):
        assert not isinstance(row, str), row
        assert row < 1e-6


def planned_loss() -> Any:
    made: Any = object.__new__(ShardedLoss)
    made._options = SimpleNamespace(pad_to_lengths=None)
    made._left_out, made._model, made.step = "loss", torch.nn.Linear(1, 1), SimpleNamespace()
    return made


def test_another_optimizer_in_a_second_training_is_refused() -> None:
    loss, weight = planned_loss(), torch.ones(1)
    known, other = torch.optim.SGD([weight]), torch.optim.SGD([weight])
    trainer, loss._optimizer = SimpleNamespace(accelerator=SimpleNamespace(_models=[])), ref(known)
    loss._trainer = lambda: trainer
    assert loss._prepare(loss._model, known) == (loss._model, known)
    with pytest.raises(MismatchError, match=r"another optimizer than the one .*: build model and trainer an"):
        loss._prepare(loss._model, other)


def test_predictions_of_padded_batches_are_refused() -> None:
    loss = planned_loss()
    loss._options.pad_to_lengths = 16
    with pytest.raises(memplan.InputError, match="leave pad_to_lengths out, and have the data collator pad"):
        loss._evaluated(loss._model, {}, True, None)


def test_predictions_without_labels_are_refused() -> None:
    trainer: Any = pytest.importorskip("transformers.trainer").Trainer
    loss, made = planned_loss(), object.__new__(trainer)
    made.label_names, made.can_return_loss = ["labels"], False
    loss._trainer = lambda: made
    with pytest.raises(MismatchError, match="needs labels: give each example labels, of any values"):
        loss._predict(loss._model, {"input_ids": torch.ones(1)}, False)
