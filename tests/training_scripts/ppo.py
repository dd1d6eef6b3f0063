"""Proximal policy optimisation in one file: an agent that has no forward, a clipped loss, an entropy bonus."""

import torch
import memplan  # memplan
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.actor = nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
        )

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x), validate_args=False)
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


torch.manual_seed(1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def ppo_loss(agent, obs, actions, logprobs, advantages, returns):
    _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs, actions)
    ratio = (newlogprob - logprobs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
    value = 0.5 * ((newvalue.view(-1) - returns) ** 2).mean()
    return policy - 0.01 * entropy.mean() + value * 0.5


for _update in range(2):
    obs = torch.randn(32, 4)
    with torch.no_grad():
        actions, logprobs, _, values = agent.get_action_and_value(obs)
    advantages = torch.randn(32)
    returns = advantages + values.view(-1)
    for _epoch in range(2):
        for indices in torch.randperm(32).split(8):
            given = (each[indices] for each in (obs, actions, logprobs, advantages, returns))
            loss = ppo_loss(agent, *given)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
model = agent
