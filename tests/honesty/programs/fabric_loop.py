import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="auto")
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(24, 3), torch.randint(2, (24,))), batch_size=6))
for x, y in loader:
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.cross_entropy(model(x), y))
    optimizer.step()
