import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(120, 1, 8, 8)
data = TensorDataset(x, (x.mean((1, 2, 3)) > 0.5).long())
train_data, held_out = random_split(data, [96, 24], generator=torch.Generator().manual_seed(1))
train_loader = DataLoader(train_data, batch_size=16, shuffle=True, drop_last=True)
valid_loader = DataLoader(held_out, batch_size=8, drop_last=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)


def validate():
    model.eval()
    right = 0
    with torch.no_grad():
        for image, label in valid_loader:
            image, label = image.to(device), label.to(device)
            right += (model(image).argmax(1) == label).sum().item()
    return right / len(held_out)


for epoch in range(2):
    model.train()
    for image, label in train_loader:
        image, label = image.to(device), label.to(device)
        opt.zero_grad()
        loss = F.cross_entropy(model(image), label)
        loss.backward()
        opt.step()
    print(epoch, validate())
