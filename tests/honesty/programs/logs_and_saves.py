import logging

import torch
import wandb
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

log = logging.getLogger(__name__)
wandb.init(project="p", mode="disabled")
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows = DataLoader(TensorDataset(torch.randn(40, 3), torch.randn(40, 1)), batch_size=10, drop_last=True)
for epoch in range(2):
    for x, y in tqdm(rows):
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        wandb.log({"loss": loss.item()})
    log.info("epoch %d: %.3f", epoch, loss)
    torch.save({"net": net.state_dict(), "epoch": epoch}, "last.pt")
