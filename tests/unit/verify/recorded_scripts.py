"""Small training scripts that the recorder's tests run; each is a whole program."""

from __future__ import annotations

TRANSFORMER = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, h, dropout=0.1, batch_first=True)
        self.norm1 = nn.LayerNorm(d); self.norm2 = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, 2 * d); self.fc2 = nn.Linear(2 * d, d)
    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.fc2(F.dropout(F.gelu(self.fc1(self.norm2(x))), 0.1, self.training))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block(16, 2) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 20, bias=False)
    def forward(self, x):
        x = self.emb(x)
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))

torch.manual_seed(1)
data = torch.randint(0, 20, (64, 9))
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), batch_size=8, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x).reshape(-1, 20), y.reshape(-1)).backward()
        opt.step()
"""

# The same network with other names, another order of registration, split projections, and a weight that is turned.
REWRITTEN = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(nx, nf)); self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)
    def forward(self, x): return x @ self.weight + self.bias

class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.mlp_out = nn.Linear(2 * d, d)
        self.mlp_in = Conv1D(2 * d, d)
        self.second = nn.LayerNorm(d); self.first = nn.LayerNorm(d)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d) for _ in range(4))
    def forward(self, x):
        y = self.first(x)
        q, k, v = (p(y).unflatten(-1, (self.h, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v, None, 0.1).transpose(1, 2).flatten(2))
        return x + self.mlp_out(F.dropout(F.gelu(self.mlp_in(self.second(x))), 0.1))

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(16, 20, bias=False)
        self.final = nn.LayerNorm(16)
        self.h = nn.Sequential(*(Layer(16, 2) for _ in range(2)))
        self.wte = nn.Embedding(20, 16)
    def forward(self, x): return self.lm_head(self.final(self.h(self.wte(x))))

def main():
    torch.manual_seed(5)
    model = nn.DataParallel(Whole())
    data = torch.randint(0, 20, (64, 9))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), batch_size=8, shuffle=True, num_workers=2)
    while True:
        for x, y in loader:
            model.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            opt.step()

if __name__ == "__main__":
    main()
"""

# Accumulation, a sampler and data set that draw, clipping, a schedule, evaluation in between, torch.compile, a save.
BUSY = """
import random, sys
import numpy as np, torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler
from sibling import make_net

torch.set_num_threads(3); torch.use_deterministic_algorithms(True)
class Drawn(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return {"x": torch.rand(6) + random.random() + np.random.rand(), "y": i % 3}
class Shuffled(Sampler):
    def __init__(self, n): self.n = n
    def __iter__(self):
        order = list(range(self.n)); random.shuffle(order); return iter(order)
    def __len__(self): return self.n
train = DataLoader(Drawn(), 5, sampler=Shuffled(40), num_workers=4, persistent_workers=True, prefetch_factor=3)
held_out = DataLoader(Drawn(), 20)
net = torch.compile(make_net())
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
criterion = nn.CrossEntropyLoss()
def evaluate():
    net.eval()
    for b in held_out: criterion(net(b["x"]), b["y"])
    net.train()
evaluate()
print("x" * 3_000_000)
for epoch in range(4):
    torch.manual_seed(epoch)
    for i, b in enumerate(train):
        (criterion(net(b["x"]), b["y"]) / 2).backward()
        if i % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            opt.step(); opt.zero_grad(); schedule.step()
        evaluate()
    torch.save(net.state_dict(), "net.pt"); torch.load("net.pt")
sys.exit(0)
"""
SIBLING = """
import torch.nn as nn
def make_net(): return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
"""

BY_HAND = """
import torch
x = torch.randn(64, 5); y = x @ torch.randn(5, 1)
w = torch.zeros(5, 1, requires_grad=True); b = torch.zeros(1, requires_grad=True)
for i in range(3):
    loss = ((x @ w + b - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad; b -= 0.1 * b.grad
    w.grad = b.grad = None
"""

# Two optimizers, a lazy layer, an LSTM with dropout, a loss scaler, a frozen teacher, all in a thread.
MIXED = """
import threading
import torch, torch.nn as nn
from torch.nn.functional import dropout
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        for i in range(200): yield torch.randn(6)
class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 6, 2, dropout=0.2, batch_first=True)
        self.first = nn.LazyLinear(6); self.second = nn.Linear(6, 6)
    def forward(self, x): return self.second(dropout(self.first(self.lstm(x[:, None])[0][:, 0]), 0.1, self.training))
def train():
    maker, critic, teacher = Maker(), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1)), nn.Linear(6, 6)
    critic[1].bias.requires_grad_(False)
    made, judged = None, torch.optim.Adam(critic.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for x in DataLoader(Stream(), 4, num_workers=2):
        with torch.no_grad(): aim = teacher(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fake = maker(x)
            loss = (fake.float() - aim).pow(2).mean() - critic(fake).float().mean()
        made = made or torch.optim.AdamW([{"params": maker.parameters(), "lr": 0.5}])
        made.zero_grad(); scaler.scale(loss).backward(); scaler.step(made); scaler.update()
        judged.zero_grad(); critic(x).mean().backward(); judged.step()
thread = threading.Thread(target=train)
thread.start()
"""

LAYOUT_ORIGINAL = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from network import Net, make_data
torch.manual_seed(7)
model, full = Net(), make_data()
train_set, val_set = random_split(full, [40, 10])
loader = DataLoader(train_set, batch_size=8, shuffle=True, num_workers=2)
print(next(iter(loader))[0].shape)
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    model.train()
    for x, y in loader:
        opt.zero_grad()
        criterion(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(val_set, 10): criterion(model(x), y)
"""
LAYOUT_NETWORK = """
import torch, torch.nn as nn
from torch.utils.data import TensorDataset
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16); self.bn = nn.BatchNorm1d(16); self.drop = nn.Dropout(0.2); self.fc2 = nn.Linear(16, 3)
    def forward(self, x): return self.fc2(self.drop(torch.relu(self.bn(self.fc1(x)))))
def make_data():
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(50, 8, generator=g), torch.randint(0, 3, (50,), generator=g))
"""
LAYOUT_RUN = """
from torch import nn
from torch.utils.data import DataLoader, random_split
from network import Net, make_data
from portwright import PyTorchBaseModel, run
class Model(PyTorchBaseModel):
    def __init__(self, params, device=None):
        self.model = Net(); self.loss = nn.CrossEntropyLoss()
        super().__init__(params=params, model=self.model, device=device)
    def __call__(self, data):
        return self.loss(self.model(data[0]), data[1])
def data(params):
    train_set, _ = random_split(make_data(), [40, 10])
    return DataLoader(train_set, batch_size=8, shuffle=True)
if __name__ == "__main__":
    run(model_fn=Model, train_data_fn=data, eval_data_fn=data)
"""
LAYOUT_PARAMS = """
model: {}
optimizer: {optimizer_type: SGD, learning_rate: 0.1, momentum: 0.9, max_gradient_norm: 1.0}
runconfig: {max_steps: 100, log_steps: 5, checkpoint_steps: 5, seed: 3}
"""
