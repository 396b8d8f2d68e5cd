"""Trains char-rnn's model a character at a time; its own train.py indexes a number after the first step (torch 0.3)."""

import torch
from torch import nn

from model import CharRNN

torch.manual_seed(0)
WIDTH, LENGTH, NUM_CHARACTERS = 8, 6, 20
text = torch.randint(0, NUM_CHARACTERS, (24 * WIDTH, LENGTH + 1))
net = CharRNN(NUM_CHARACTERS, 16, NUM_CHARACTERS, model="gru", n_layers=2)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
entropy = nn.CrossEntropyLoss()
for lines in torch.utils.data.DataLoader(text, batch_size=WIDTH):
    net.zero_grad()
    state, losses = net.init_hidden(WIDTH), []
    for place in range(LENGTH):
        scores, state = net(lines[:, place], state)
        losses.append(entropy(scores, lines[:, place + 1]))
    total = torch.stack(losses).sum()
    total.backward()
    optimizer.step()
    print(total.item() / LENGTH)
