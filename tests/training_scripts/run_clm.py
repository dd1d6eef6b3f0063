"""Train a GPT-2 by the Trainer as run_clm does: accumulation, evaluation with metrics, checkpoints."""

import torch
import memplan  # memplan
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=96,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
    use_cache=False,
)
model = GPT2LMHeadModel(config)
rows = [
    {"input_ids": one, "labels": one, "attention_mask": torch.ones(16, dtype=torch.long)}
    for one in torch.randint(96, (22, 16))
]
arguments = TrainingArguments(
    FOLDER, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2, logging_steps=1,
    eval_strategy="steps", eval_steps=2, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
)  # fmt: skip


def compute_metrics(prediction):
    return {
        "accuracy": float((prediction.predictions.argmax(-1)[:, :-1] == prediction.label_ids[:, 1:]).mean())
    }


trainer = Trainer(
    model, arguments, train_dataset=rows, eval_dataset=rows[:6], data_collator=default_data_collator,
    compute_metrics=compute_metrics,
)  # fmt: skip
memplan.optimize_trainer(trainer, budget=BUDGET)  # memplan
trainer.train()
losses = [
    entry[key]
    for entry in trainer.state.log_history
    for key in ("loss", "eval_loss", "eval_accuracy")
    if key in entry
]
