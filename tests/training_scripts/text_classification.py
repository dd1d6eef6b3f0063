"""Fine-tune BERT on texts of all lengths, each batch padded to its longest, by the Trainer."""

import torch
import memplan  # memplan
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=96, num_labels=3, **sizes))
lengths = torch.randint(5, 40, (60,)).tolist()
rows = [{"input_ids": torch.randint(1, 96, (n,)), "label": i % 3} for i, n in enumerate(lengths)]


def collate(examples):
    longest = max(len(one["input_ids"]) for one in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    for row, one in zip(ids, examples, strict=True):
        row[: len(one["input_ids"])] = one["input_ids"]
    return {
        "input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([one["label"] for one in examples])
    }  # fmt: skip


arguments = TrainingArguments(
    FOLDER, per_device_train_batch_size=4, max_steps=14, logging_steps=1, use_cpu=True, report_to=[],
    save_strategy="no", disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=rows, data_collator=collate)
memplan.optimize_trainer(trainer, budget=BUDGET)  # memplan
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
