"""Trains a small vision transformer of vit-pytorch as the notebook of its examples does."""

import torch
from torch import nn
from vit_pytorch.vit import ViT

torch.manual_seed(0)
images, labels = torch.randn(88, 3, 32, 32), torch.randint(0, 5, (88,))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, labels), batch_size=4, shuffle=True
)
model = ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=32, dropout=0.1)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-5)
for data, label in loader:
    output = model(data)
    loss = criterion(output, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
