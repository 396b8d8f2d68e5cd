import torch
from torch import nn

x = torch.linspace(-1, 1, 50).unsqueeze(1)
wave = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
solver = torch.optim.LBFGS(wave.parameters(), lr=0.5)


def closure():
    solver.zero_grad()
    miss = (wave(x) - torch.sin(3 * x)).square().mean()
    miss.backward()
    return miss


for _ in range(4):
    solver.step(closure)
