"""transformers' Trainer within a budget: losses and weights are its own, bit by bit, by one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.errors import InputError, MismatchError
from not_none import not_none
from torch import Tensor, nn
from torch.nn import functional

AcceleratorState: Any = pytest.importorskip("accelerate.state").AcceleratorState
transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

PLAN: dict[str, Any] = {"budget": "150kB", "solver": "rotor", "verify": False}


@pytest.fixture(autouse=True)
def accelerate_as_new() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    AcceleratorState._reset_state(True)


def model() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 20, "n_positions": 8}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))


def sentences(count: int) -> list[dict[str, Tensor]]:
    words = torch.randint(20, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "labels": each} for each in words]


def trainer(folder: Path, *, kind: Any = None, **options: Any) -> Any:
    """10 sentences in batches of 4: the last one is smaller. options: of Trainer and TrainingArguments."""
    loss_function, float16 = options.pop("compute_loss_func", None), options.pop("float16", False)
    arguments = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    settings = transformers.TrainingArguments(str(folder), **arguments)
    data = {"train_dataset": sentences(10), "eval_dataset": sentences(6)}
    made = (kind or transformers.Trainer)(model(), settings, **data, compute_loss_func=loss_function)
    if float16:  # accelerate asks for a GPU; the CPU computes it all the same
        made.accelerator.state._mixed_precision, made.accelerator.native_amp = "fp16", True
        made.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)
    return made


def train(trainer: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    trainer.train(**options)
    return trainer


def result(trained: Any) -> tuple[list[float], list[Tensor]]:
    """Losses, of training and of evaluation, and weights."""
    losses = [row[key] for row in trained.state.log_history for key in row if key in ("loss", "eval_loss")]
    return losses, list(trained.model.parameters())


def assert_same(planned: Any, baseline: Any) -> None:
    (losses, weights), (expected, theirs) = result(planned), result(baseline)
    assert losses == expected
    assert len(losses) > 4
    assert all(torch.equal(mine, other) for mine, other in zip(weights, theirs, strict=True))


def token_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2, "eval_strategy": "epoch"},
        {
            "compute_loss_func": token_loss,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 3,
            "float16": True,
        },
    ],
    ids=["accumulation, evaluation", "a loss function, float16"],
)
def test_a_planned_trainer_is_the_trainer_bit_by_bit(options: dict[str, Any], tmp_path: Path) -> None:
    baseline = train(trainer(tmp_path, **options))
    AcceleratorState._reset_state(True)
    planned = trainer(tmp_path, **options)
    loss = memplan.optimize_trainer(planned, **PLAN)
    assert_same(train(planned), baseline)
    assert len(not_none(loss.step).plans) == 2
    assert (
        sum(plan.iterations for plan in not_none(loss.step).report().plans)
        == 3 * planned.args.num_train_epochs
    )


@pytest.mark.parametrize("steps", [1, 2])
def test_the_peak_of_training_is_within_the_budget(steps: int, tmp_path: Path) -> None:
    """Its optimizer is found when the first batch is planned; batches loaded ahead are outside."""
    made = trainer(tmp_path, gradient_accumulation_steps=steps, num_train_epochs=3, logging_steps=50)
    weights = sum(tensor.nbytes for tensor in made.model.parameters())
    loss = memplan.optimize_trainer(made, **PLAN)
    made.train()  # plans, which may take more
    step = not_none(loss.step)
    states = sum(each.nbytes for row in made.optimizer.state.values() for each in row.values())
    peak = states + live_peak(made.train).peak_bytes
    assert loss.step is step
    outside = step._executor.planner.outside
    assert outside.name == "AdamW"
    assert outside.gradients == (weights if steps > 1 else 0)
    budget = not_none(step.plans[0].budget) + outside.bytes
    ahead = (steps + 1) * 2 * sentences(4)[0]["labels"].nbytes * 4
    assert 0.7 * budget < weights + peak <= budget + ahead


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Saved in the middle of an epoch, by a plain run; with smooth labels."""
    saving = {
        "save_strategy": "steps",
        "save_steps": 2,
        "label_smoothing_factor": 0.1,
        "eval_strategy": "epoch",
    }
    first = trainer(tmp_path / "planned", **saving)
    memplan.optimize_trainer(first, **PLAN)
    baseline = trainer(tmp_path / "plain", **saving)
    assert_same(train(first), train(baseline))
    second = trainer(tmp_path / "again", **saving)
    memplan.optimize_trainer(second, **PLAN)
    assert_same(train(second, resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-2")), baseline)
    saved, other = (
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / name / "checkpoint-4").state_dict()
        for name in ("planned", "plain")
    )
    assert all(torch.equal(saved[name], other[name]) for name in saved)


OF_CLOCKS = ("_runtime", "_per_second", "total_flos")
EARLY: dict[str, Any] = {"early_updates": True}
BUCKETS: dict[str, Any] = {"bucket_size": "1MB"}
HARDLY: dict[str, Any] = {"max_grad_norm": 0.05}
"""A norm that every iteration exceeds."""
UPDATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "early": ({"eval_strategy": "epoch"}, EARLY),
    "early, rolled back": (HARDLY, EARLY),
    "early, compared": ({"max_grad_norm": 1.2}, {**EARLY, "verify": None}),
    "early, accumulating": ({"gradient_accumulation_steps": 2, "num_train_epochs": 3}, EARLY),
    "early, accumulating, a loss function": (
        {
            **HARDLY,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 3,
            "compute_loss_func": token_loss,
        },
        EARLY,
    ),
    "early, float16": ({"float16": True, "num_train_epochs": 4}, EARLY),
    "early, float16, not clipped": (
        {"float16": True, "num_train_epochs": 4, "max_grad_norm": 0.0, "optim": "adamw_torch"},
        EARLY,
    ),
    "early, moved": (HARDLY, {**EARLY, "solver": "auto", "machine": "rtx3060", "time_limit": 1}),
    "buckets": ({}, BUCKETS),
    "buckets, float16, not clipped": (
        {"float16": True, "num_train_epochs": 4, "max_grad_norm": 0.0},
        BUCKETS,
    ),
    "buckets, accumulating": ({"gradient_accumulation_steps": 2, "num_train_epochs": 3}, BUCKETS),
    "buckets, early, accumulating": (
        {**HARDLY, "gradient_accumulation_steps": 2, "num_train_epochs": 3},
        {**BUCKETS, **EARLY, "solver": "auto", "machine": "rtx3060", "time_limit": 1},
    ),
    "buckets, not clipped": ({"max_grad_norm": 0.0, "eval_strategy": "epoch"}, BUCKETS),
}
"""Options of Trainers and of plans."""


def logged(trained: Any) -> list[dict[str, Any]]:
    """Return what the trainer has logged, without times."""
    rows = trained.state.log_history
    return [{key: row[key] for key in row if not key.endswith(OF_CLOCKS)} for row in rows]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", UPDATES)
def test_updates_in_the_plan_are_the_trainers(case: str, tmp_path: Path) -> None:
    """Losses, norms, learning rates and weights, also of updates that are skipped."""
    options, plan = UPDATES[case]
    baseline = train(trainer(tmp_path, **options))
    AcceleratorState._reset_state(True)
    planned = trainer(tmp_path, **options)
    loss = memplan.optimize_trainer(planned, **{**PLAN, "budget": "300kB", "cache": False, **plan})
    assert_same(train(planned), baseline)
    assert logged(planned) == logged(baseline)
    assert all("grad_norm" in row for row in logged(planned) if "loss" in row)
    plans = not_none(loss.step).report().plans
    if plan.get("early_updates") and options.get("max_grad_norm") == HARDLY["max_grad_norm"]:
        updates = planned.state.global_step
        left_over = planned.args.num_train_epochs * (planned.args.gradient_accumulation_steps - 1)
        assert sum(each.rolled_back for each in plans) == updates - left_over


@pytest.mark.parametrize("plan", [EARLY, BUCKETS], ids=str)
def test_checkpoints_of_updates_in_the_plan_are_the_trainers(plan: dict[str, Any], tmp_path: Path) -> None:
    """Each goes on from the other's, and a Trainer trains twice."""
    saving = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 1, **HARDLY}
    if plan is EARLY:
        saving |= {"gradient_accumulation_steps": 2, "save_steps": 1, "num_train_epochs": 4}
    first, baseline, second, third = (
        trainer(tmp_path / name, **saving) for name in ("planned", "ordinary", "second", "third")
    )
    for each in (first, second):
        memplan.optimize_trainer(each, **{**PLAN, "budget": "300kB", "cache": False, **plan})
    assert_same(train(first), train(baseline))
    step = saving["save_steps"]
    assert_same(
        train(second, resume_from_checkpoint=str(tmp_path / "ordinary" / f"checkpoint-{step}")), baseline
    )
    assert_same(
        train(third, resume_from_checkpoint=str(tmp_path / "planned" / f"checkpoint-{step}")), baseline
    )
    assert_same(train(first), train(baseline))


def test_a_scaler_and_accumulation_are_refused_with_updates_in_the_plan(tmp_path: Path) -> None:
    made = trainer(tmp_path, float16=True, gradient_accumulation_steps=2)
    for plan in (EARLY, BUCKETS):
        (name,) = plan
        with pytest.raises(InputError, match=f"^{name}= is not planned with fp16.* leave {name} out, or"):
            memplan.optimize_trainer(made, **PLAN, **plan)
    memplan.optimize_trainer(made, **PLAN)  # the way out


class Taught(transformers.Trainer):
    """A loss of its own, with a second model and a number that changes."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        torch.manual_seed(9)
        self.teacher = model().eval().requires_grad_(False)
        self.seen: list[Tensor] = []
        self.noting = False

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_rest: Any) -> Any:
        outputs = model(**inputs)
        with torch.no_grad():
            expected = self.teacher(**inputs).logits.softmax(-1)
        loss = outputs.loss + functional.cross_entropy(outputs.logits.mT, expected.mT)
        if self.noting:
            self.seen.append(loss.detach())
        return (loss, outputs) if return_outputs else loss


def test_a_loss_that_a_trainer_overrides_is_planned_too(tmp_path: Path) -> None:
    planned, baseline = (
        trainer(tmp_path, kind=Taught, num_train_epochs=3, per_device_train_batch_size=5) for _ in range(2)
    )
    memplan.optimize_trainer(planned, **PLAN)
    assert_same(train(planned), train(baseline))


def test_what_a_loss_keeps_in_the_trainer_is_kept(tmp_path: Path) -> None:
    planned, baseline = (trainer(tmp_path, kind=Taught) for _ in range(2))
    planned.noting = baseline.noting = True
    memplan.optimize_trainer(planned, **PLAN)
    assert_same(train(planned), train(baseline))
    assert len(planned.seen) == len(baseline.seen) == 6
    assert all(torch.equal(one, other) for one, other in zip(planned.seen, baseline.seen, strict=True))


def test_what_is_not_a_trainer_is_refused(tmp_path: Path) -> None:
    noting = trainer(tmp_path, kind=Taught)
    memplan.optimize_trainer(noting, **PLAN)
    with pytest.raises(InputError, match="the trainer's compute_loss has been replaced already"):
        memplan.optimize_trainer(noting, **PLAN)
    with pytest.raises(InputError, match=r"the trainer is a GPT2LMHeadModel, not one of transformers\."):
        memplan.optimize_trainer(model(), **PLAN)
    inputs = {"input_ids": torch.zeros(2, 4, dtype=torch.long)}
    with pytest.raises(MismatchError, match="return_outputs=True"):
        noting.compute_loss(noting.model.train(), inputs, return_outputs=True)
