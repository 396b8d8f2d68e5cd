import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, ids, labels):
        logits = self.out(self.table(ids))
        kept = labels != -100
        return nn.functional.cross_entropy(logits[kept], labels[kept])


ids = torch.randint(1, 30, (40, 6))
labels = torch.where(torch.rand(40, 6) < 0.3, ids, -100)
net = Words()
adam = torch.optim.Adam(net.parameters())
for a, b in DataLoader(TensorDataset(ids, labels), batch_size=8, drop_last=True):
    adam.zero_grad()
    loss = net(a, b)
    loss.backward()
    adam.step()
