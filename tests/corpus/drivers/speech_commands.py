"""Trains a network on generated mel spectrograms with the settings of train_speech_commands.py, which needs librosa."""

import models
import torch

torch.manual_seed(0)
inputs, targets = torch.randn(44, 1, 32, 32), torch.randint(0, 12, (44,))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(inputs, targets), batch_size=2, shuffle=True
)
model = models.create_model(model_name="resnext29_8_64", num_classes=12, in_channels=1)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-2)
model.train()
for data, target in loader:
    outputs = model(data)
    loss = criterion(outputs, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
