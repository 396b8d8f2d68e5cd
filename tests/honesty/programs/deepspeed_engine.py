import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
rows = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
settings = {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}
engine, _, loader, _ = deepspeed.initialize(
    model=net, model_parameters=net.parameters(), training_data=rows, config=settings
)
for x, y in loader:
    loss = nn.functional.cross_entropy(engine(x), y)
    engine.backward(loss)
    engine.step()
