"""Train an image model of timm: label smoothing, a task that wraps model and loss, outputs for its log."""

import torch
import memplan  # memplan
import timm
import timm.optim
from timm.loss import LabelSmoothingCrossEntropy
from timm.scheduler import CosineLRScheduler

torch.manual_seed(0)
model = timm.create_model("test_resnet.r160_in1k", pretrained=False, num_classes=10).train()
loss_fn = LabelSmoothingCrossEntropy(0.1)
optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=2e-5)
schedule = CosineLRScheduler(optimizer, t_initial=5)
losses = []
step = memplan.optimize(model, loss_fn=loss_fn, return_outputs=True, budget=BUDGET)  # memplan
for number in range(5):
    images, target = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    loss = step(images, targets=target)  # without memplan: output = model(images)
    output = step.output  # without memplan: loss = loss_fn(output, target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step(number + 1)
    losses += [loss.item(), output.detach().square().mean().item()]
