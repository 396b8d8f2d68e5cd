import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.randn(50, 4), torch.randint(2, (50,)))
net, opt = nn.Linear(4, 2), None
opt = torch.optim.Adagrad(net.parameters(), lr=0.1)
for x, y in DataLoader(rows, batch_size=16, shuffle=True):
    loss = nn.functional.nll_loss(net(x).log_softmax(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
