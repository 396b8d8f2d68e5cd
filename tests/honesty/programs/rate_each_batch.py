import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = DataLoader(TensorDataset(torch.randn(60, 3), torch.randn(60, 1)), batch_size=6, drop_last=True)
line = nn.Linear(3, 1)
rule = torch.optim.SGD(line.parameters(), lr=0.1, momentum=0.9)
rate = torch.optim.lr_scheduler.OneCycleLR(rule, max_lr=0.2, total_steps=len(steps) * 3)
for _ in range(3):
    for inp, out in steps:
        rule.zero_grad()
        err = torch.nn.functional.huber_loss(line(inp), out)
        err.backward()
        rule.step()
        rate.step()
