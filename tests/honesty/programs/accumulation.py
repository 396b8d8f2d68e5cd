import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVERY = 4
torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(160, 7), torch.randn(160, 2)), batch_size=5, drop_last=True)
model = nn.Linear(7, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.zero_grad()
for i, (a, b) in enumerate(loader):
    loss = (model(a) - b).abs().mean() / EVERY
    loss.backward()
    if (i + 1) % EVERY == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
