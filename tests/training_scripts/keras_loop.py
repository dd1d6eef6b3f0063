"""Train a Keras model on PyTorch by a loop of one's own, as in its guide."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras  # noqa: E402
import torch  # noqa: E402
import memplan  # memplan

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((12,)),
        keras.layers.Dense(24, activation="relu"),
        keras.layers.Dense(24),
        keras.layers.Dense(4),
    ]
)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
step = memplan.optimize(model, loss_fn=loss_fn, budget=BUDGET)  # memplan
for _ in range(5):
    inputs, targets = torch.randn(8, 12), torch.randint(4, (8,))
    loss = step(inputs, targets=targets)  # without memplan: loss = loss_fn(model(inputs), targets)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
