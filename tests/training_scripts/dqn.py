"""Deep Q-learning of CartPole in one file, with a replay buffer and a target network."""

import random

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)


def network():
    return nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))


environment = gymnasium.make("CartPole-v1")
q_network, target_network = network(), network()
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
replay, losses = [], []


@memplan.optimize(budget=BUDGET)  # memplan
def td_loss(q_network, observations, actions, target):
    return F.mse_loss(target, q_network(observations).gather(1, actions).squeeze())


observation, _ = environment.reset(seed=1)
for step in range(60):
    if random.random() < max(0.05, 1 - step / 40):
        action = random.randrange(2)
    else:
        action = int(q_network(torch.as_tensor(observation)).argmax())
    following, reward, terminated, truncated, _ = environment.step(action)
    replay.append((observation, action, reward, following, terminated))
    observation = environment.reset(seed=step)[0] if terminated or truncated else following
    if step > 20 and step % 4 == 0:
        columns = zip(*random.sample(replay, 16), strict=True)
        seen, actions, rewards, after, ended = (torch.as_tensor(np.array(column)) for column in columns)
        with torch.no_grad():
            best = target_network(after).max(dim=1).values
            target = rewards.float() + 0.99 * best * (1 - ended.float())
        loss = td_loss(q_network, seen, actions[:, None], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if step % 20 == 0:
        for mine, theirs in zip(target_network.parameters(), q_network.parameters(), strict=True):
            mine.data.copy_(theirs.data)
model = q_network
