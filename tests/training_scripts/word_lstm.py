"""Train PyTorch's word-level LSTM: the hidden state of a batch goes into the next one, detached."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, words=60, width=24):
        super().__init__()
        self.drop, self.embed = nn.Dropout(0.2), nn.Embedding(words, width)
        self.rnn, self.decoder = nn.LSTM(width, width, 2, dropout=0.2), nn.Linear(width, words)

    def forward(self, source, hidden):
        output, hidden = self.rnn(self.drop(self.embed(source)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).view(-1, 60), dim=1), hidden


torch.manual_seed(0)
model = RNNModel()
text, losses = torch.randint(60, (49, 4)), []
hidden = (torch.zeros(2, 4, 24), torch.zeros(2, 4, 24))


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, data, targets, hidden):
    output, hidden = model(data, hidden)
    return F.nll_loss(output, targets), hidden


for start in range(0, 48, 8):
    data, targets = text[start : start + 8], text[start + 1 : start + 9].reshape(-1)
    model.zero_grad()
    hidden = tuple(each.detach() for each in hidden)
    loss, hidden = loss_of(model, data, targets, hidden)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-1.0)
    losses.append(loss.item())
