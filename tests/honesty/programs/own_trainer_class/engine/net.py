from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 2))

    def forward(self, x):
        return self.layers(x)
