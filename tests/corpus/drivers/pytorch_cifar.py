"""Trains one of the networks of pytorch-cifar with the settings of its main.py, whose progress bar needs a terminal.

Batches are of 4 instead of 128, and the learning rate is smaller by as much: with 0.1 the loss grows, and rounding with it.
"""

import torch
from models.efficientnet import EfficientNetB0
from torch import nn

torch.manual_seed(0)
images, labels = torch.randn(88, 3, 32, 32), torch.randint(0, 10, (88,))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, labels), batch_size=4, shuffle=True
)
net = EfficientNetB0()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * 4 / 128, momentum=0.9, weight_decay=5e-4)
net.train()
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = criterion(net(inputs), targets)
    loss.backward()
    optimizer.step()
    print(loss.item())
