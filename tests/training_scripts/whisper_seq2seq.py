"""Fine-tune Whisper on speech, by Seq2SeqTrainer with its generation arguments."""

import torch
import memplan  # memplan
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

torch.manual_seed(0)
config = WhisperConfig(
    vocab_size=120, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64,
    decoder_ffn_dim=64, encoder_attention_heads=2, decoder_attention_heads=2, max_source_positions=40,
    max_target_positions=24, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    suppress_tokens=None, begin_suppress_tokens=None, dropout=0.1,
)  # fmt: skip
model = WhisperForConditionalGeneration(config)
generator = torch.Generator().manual_seed(1)
rows = [
    {
        "input_features": torch.randn(16, 80, generator=generator),
        "labels": torch.randint(4, 120, (length,), generator=generator),
    }
    for length in (9, 12, 12, 7, 12, 10, 12, 12, 11, 12)
]


def collate(examples):
    """Pad labels to 12 tokens with -100, as the guide's collator pads to the longest."""
    labels = torch.full((len(examples), 12), -100)
    for row, example in zip(labels, examples, strict=True):
        row[: len(example["labels"])] = example["labels"]
    return {"input_features": torch.stack([one["input_features"] for one in examples]), "labels": labels}


arguments = Seq2SeqTrainingArguments(
    FOLDER, per_device_train_batch_size=4, max_steps=6, learning_rate=1e-3, warmup_steps=1, use_cpu=True,
    logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, predict_with_generate=True,
)  # fmt: skip
trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, data_collator=collate)
memplan.optimize_trainer(trainer, budget=BUDGET)  # memplan
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
