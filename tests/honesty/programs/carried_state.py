import torch
from torch import nn

V, B, T = 20, 4, 6
stream = torch.randint(0, V, (B, 61))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.head = nn.Embedding(V, 10), nn.GRU(10, 14, batch_first=True), nn.Linear(14, V)

    def forward(self, x, h):
        y, h = self.rnn(self.emb(x), h)
        return self.head(y), h


net, h = Reader(), torch.zeros(1, B, 14)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
for at in range(0, 60, T):
    h = h.detach()
    out, h = net(stream[:, at : at + T], h)
    loss = nn.functional.cross_entropy(out.reshape(-1, V), stream[:, at + 1 : at + T + 1].reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.25)
    opt.step()
