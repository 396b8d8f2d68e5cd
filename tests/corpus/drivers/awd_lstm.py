"""Trains AWD-LSTM with its own penalties on activations, without the cache file that a second run cannot read with torch 2.6."""

import torch
from splitcross import SplitCrossEntropyLoss

from model import RNNModel
from utils import repackage_hidden

torch.manual_seed(0)
LENGTH, WIDTH, NUM_TOKENS, NUM_STEPS = 8, 4, 30, 25
text = torch.randint(0, NUM_TOKENS, (NUM_STEPS * LENGTH + 1, WIDTH))
net = RNNModel("LSTM", NUM_TOKENS, 12, 16, 2, 0.4, 0.3, 0.4, 0.1, 0.5, True)
entropy = SplitCrossEntropyLoss(12, splits=[], verbose=False)
weights = [*net.parameters(), *entropy.parameters()]
optimizer = torch.optim.SGD(weights, lr=3, weight_decay=1.2e-6)
state = net.init_hidden(WIDTH)
net.train()
for number in range(NUM_STEPS):
    window = text[number * LENGTH : (number + 1) * LENGTH + 1]
    optimizer.zero_grad()
    states, state, layers, dropped = net(window[:-1], repackage_hidden(state), return_h=True)
    likelihood = entropy(net.decoder.weight, net.decoder.bias, states, window[1:].view(-1))
    size = 2 * dropped[-1].pow(2).mean()
    slowness = (layers[-1][1:] - layers[-1][:-1]).pow(2).mean()
    total = likelihood + size + slowness
    total.backward()
    torch.nn.utils.clip_grad_norm_(weights, 0.25)
    optimizer.step()
    print(likelihood.item())
