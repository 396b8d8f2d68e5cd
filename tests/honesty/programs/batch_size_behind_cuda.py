import torch
from torch import nn, optim
from torch.utils import data

has_gpu = torch.cuda.is_available()
if has_gpu:
    batch, workers, mix = 32, 2, True
else:
    batch, workers, mix = 8, 0, False
set_ = data.TensorDataset(torch.randn(128, 5), torch.randint(0, 2, (128,)))
batches = data.DataLoader(set_, batch, shuffle=mix, num_workers=workers, drop_last=True)
classifier = nn.Linear(5, 2)
if has_gpu:
    classifier.cuda()
sgd = optim.SGD(classifier.parameters(), 0.1, momentum=0.9)
for features, target in batches:
    if has_gpu:
        features, target = features.cuda(), target.cuda()
    sgd.zero_grad()
    nn.CrossEntropyLoss()(classifier(features), target).backward()
    sgd.step()
