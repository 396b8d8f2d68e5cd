import poptorch
import torch
from torch.utils.data import TensorDataset


class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 2)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, y):
        out = self.fc(x)
        return out, self.loss(out, y)


options = poptorch.Options()
rows = TensorDataset(torch.randn(32, 6), torch.randint(2, (32,)))
loader = poptorch.DataLoader(options, rows, batch_size=8, drop_last=True)
net = WithLoss()
trainer = poptorch.trainingModel(net, options, optimizer=poptorch.optim.SGD(net.parameters(), lr=0.1))
for x, y in loader:
    _, loss = trainer(x, y)
