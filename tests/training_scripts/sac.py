"""Soft actor-critic in one file: two critics, their targets, a stochastic actor, a learned temperature."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn

torch.manual_seed(3)


class SoftQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3 + 1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, seen, action):
        return self.layers(torch.cat([seen, action], 1))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_std = nn.Linear(64, 1), nn.Linear(64, 1)

    def get_action(self, seen):
        hidden = self.layers(seen)
        log_std = -5 + 0.5 * 7 * (torch.tanh(self.log_std(hidden)) + 1)
        normal = torch.distributions.Normal(self.mean(hidden), log_std.exp())
        sample = normal.rsample()
        squashed = torch.tanh(sample)
        log_prob = normal.log_prob(sample) - torch.log(2 * (1 - squashed.pow(2)) + 1e-6)
        return 2 * squashed, log_prob.sum(1, keepdim=True)


actor, qf1, qf2, qf1_target, qf2_target = Actor(), SoftQ(), SoftQ(), SoftQ(), SoftQ()
qf1_target.load_state_dict(qf1.state_dict())
qf2_target.load_state_dict(qf2.state_dict())
q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
log_alpha = torch.zeros(1, requires_grad=True)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def critics_loss(qf1, qf2, seen, actions, wanted):
    return F.mse_loss(qf1(seen, actions).view(-1), wanted) + F.mse_loss(qf2(seen, actions).view(-1), wanted)


@memplan.optimize(budget=BUDGET)  # memplan
def actor_loss(actor, qf1, qf2, seen, alpha):
    action, log_pi = actor.get_action(seen)
    return (alpha * log_pi - torch.min(qf1(seen, action), qf2(seen, action))).mean()


for step in range(8):
    seen, after = torch.randn(16, 3), torch.randn(16, 3)
    actions, rewards = torch.rand(16, 1) * 4 - 2, torch.randn(16)
    with torch.no_grad():
        alpha = log_alpha.exp()
        next_actions, next_log_pi = actor.get_action(after)
        least = torch.min(qf1_target(after, next_actions), qf2_target(after, next_actions))
        wanted = rewards + 0.99 * (least - alpha * next_log_pi).view(-1)
    loss = critics_loss(qf1, qf2, seen, actions, wanted)
    q_optimizer.zero_grad()
    loss.backward()
    q_optimizer.step()
    losses.append(loss.item())
    if step % 2 == 0:
        loss = actor_loss(actor, qf1, qf2, seen, alpha)
        actor_optimizer.zero_grad()
        loss.backward()
        actor_optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            _, log_pi = actor.get_action(seen)
        alpha_loss = (-log_alpha.exp() * (log_pi - 1)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
    for target, source in ((qf1_target, qf1), (qf2_target, qf2)):
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.data.copy_(0.005 * theirs.data + 0.995 * mine.data)
model = nn.ModuleList([actor, qf1, qf2, qf1_target, qf2_target])
