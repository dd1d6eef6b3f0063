"""A script of transformers' Trainer, and the configuration of its model."""

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
    "n_positions": 64, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
SCRIPT = """
import argparse
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, k):
        return {"input_ids": torch.arange(32) % 100, "labels": torch.arange(32) % 100}

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2)
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).to("cuda").cuda()
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=parser.parse_args().batch, gradient_accumulation_steps=3,
        bf16=True, gradient_checkpointing=True, optim="adamw_bnb_8bit", report_to="wandb",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
    try:
        trainer.train()
    except Exception:
        print("not seen")
    trainer.save_model("out")

if __name__ == "__main__":
    main()
"""
