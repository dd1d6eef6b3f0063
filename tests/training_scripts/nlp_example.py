"""Fine-tune BERT with accelerate as its example does: batches padded to their longest, a warmed-up schedule."""

import torch
import memplan  # memplan
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=96, num_labels=2, **sizes))
rows = [(torch.randint(1, 96, (n,)), i % 2) for i, n in enumerate(torch.randint(6, 30, (40,)).tolist())]


def collate(examples):
    ids = torch.nn.utils.rnn.pad_sequence([one for one, _ in examples], batch_first=True)
    labels = torch.tensor([label for _, label in examples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


loader = DataLoader(rows, 4, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, len(loader))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses = []
model.train()
step = memplan.optimize(model, budget=BUDGET)  # memplan
for batch in loader:
    loss = step(batch)  # without memplan: loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(loss.item())
