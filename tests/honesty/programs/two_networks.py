import torch
from torch import nn

maker, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
opt_m, opt_j = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
bce = nn.BCELoss()
for step in range(8):
    real = torch.randn(16, 6) + 2
    fake = maker(torch.randn(16, 4))
    opt_j.zero_grad()
    (bce(judge(real), torch.ones(16, 1)) + bce(judge(fake.detach()), torch.zeros(16, 1))).backward()
    opt_j.step()
    opt_m.zero_grad()
    bce(judge(fake), torch.ones(16, 1)).backward()
    opt_m.step()
