"""Train a sentence encoder on pairs with in-batch negatives, by SentenceTransformerTrainer."""

from pathlib import Path

import torch
import memplan  # memplan
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
words = [f"w{i}" for i in range(40)]
vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
base = str(Path(FOLDER) / "base")
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
).save_pretrained(base)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(base)
transformer = Transformer(base)
model = SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
pairs = {
    "anchor": [" ".join(words[(i + k) % 40] for k in range(6)) for i in range(24)],
    "positive": [" ".join(words[(i + k + 1) % 40] for k in range(6)) for i in range(24)],
}
arguments = SentenceTransformerTrainingArguments(
    FOLDER, per_device_train_batch_size=4, max_steps=6, learning_rate=1e-3, use_cpu=True, logging_steps=1,
    report_to=[], save_strategy="no", disable_tqdm=True,
)  # fmt: skip
trainer = SentenceTransformerTrainer(
    model, arguments, train_dataset=Dataset.from_dict(pairs), loss=MultipleNegativesRankingLoss(model)
)
memplan.optimize_trainer(trainer, budget=BUDGET)  # memplan
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
