import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dev = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
scaler = torch.amp.GradScaler(dev.type, enabled=dev.type == "cuda")
body = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 3)).to(dev)
adam = torch.optim.AdamW(body.parameters(), lr=3e-4, weight_decay=0.01)
rows = DataLoader(TensorDataset(torch.randn(64, 10), torch.randint(3, (64,))), batch_size=8, drop_last=True)
for xb, yb in rows:
    xb, yb = xb.to(dev, non_blocking=True), yb.to(dev, non_blocking=True)
    with torch.autocast(dev.type, enabled=dev.type == "cuda"):
        loss = nn.functional.cross_entropy(body(xb), yb)
    adam.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()
