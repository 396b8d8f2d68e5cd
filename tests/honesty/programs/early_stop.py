import itertools

import torch
from torch import nn

net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
best, patience = float("inf"), 3
for step in itertools.count():
    x = torch.randn(32, 3)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if loss.item() < best - 1e-3:
        best, patience = loss.item(), 3
    else:
        patience -= 1
    if patience == 0 or step > 200:
        break
