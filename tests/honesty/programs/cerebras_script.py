import cerebras.pytorch as cstorch
import torch
from torch.utils.data import DataLoader, TensorDataset

backend = cstorch.backend("CSX", compile_only=True)
with backend.device:
    net = torch.nn.Linear(8, 2)
compiled = cstorch.compile(net, backend)
optimizer = cstorch.optim.SGD(net.parameters(), lr=0.1)
loss_fn = torch.nn.CrossEntropyLoss()


@cstorch.trace
def step(x, y):
    loss = loss_fn(compiled(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def feed():
    rows = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,), dtype=torch.int32))
    return DataLoader(rows, batch_size=16, drop_last=True)


loader = cstorch.utils.data.DataLoader(feed)
for x, y in cstorch.utils.data.DataExecutor(loader, num_steps=4):
    step(x, y)
