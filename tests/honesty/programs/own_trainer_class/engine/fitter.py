import torch
from torch import nn


class Fitter:
    def __init__(self, net, rate):
        self.net = net
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=rate)

    def fit(self, train, test, epochs):
        for _ in range(epochs):
            self.net.train()
            for x, y in train:
                self.optimizer.zero_grad()
                loss = self.loss(self.net(x), y)
                loss.backward()
                self.optimizer.step()
            self.measure(test)

    @torch.no_grad()
    def measure(self, loader):
        self.net.eval()
        good = sum(int((self.net(x).argmax(1) == y).sum()) for x, y in loader)
        print("accuracy", good / len(loader.dataset))
