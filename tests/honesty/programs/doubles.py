import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

grid = np.linspace(0.0, 1.0, 80).reshape(-1, 1)
pairs = TensorDataset(torch.from_numpy(grid), torch.from_numpy(np.sin(grid)))
net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for t, value in DataLoader(pairs, batch_size=16, drop_last=True):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(t), value)
    loss.backward()
    optimizer.step()
