"""Training scripts: by transformers' Trainer and by accelerate; and the configurations of their models."""

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
    "n_positions": 64, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
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
LOOP = """
import argparse
import torch
from accelerate import Accelerator
from torch.nn import functional
from transformers import AutoModelForCausalLM, get_scheduler

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, k):
        return {"input_ids": torch.arange(32) % 100, "labels": torch.arange(32) % 100}

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2)
    arguments = parser.parse_args()
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=3, log_with="wandb")
    accelerator.init_trackers("run")
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=10)
    loader = torch.utils.data.DataLoader(Tokens(), batch_size=arguments.batch, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(2):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                if OWN_LOSS:
                    labels = batch.pop("labels")
                    logits = model(**batch).logits.float()
                    targets = functional.pad(labels, (0, 1), value=-100)[..., 1:]
                    loss = functional.cross_entropy(logits.view(-1, 100), targets.reshape(-1))
                else:
                    loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            print(loss.item())
    accelerator.unwrap_model(model).save_pretrained("out")

if __name__ == "__main__":
    main()
"""
