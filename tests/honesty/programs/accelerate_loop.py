import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

helper = Accelerator(gradient_accumulation_steps=2)
net = torch.nn.Linear(5, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.05)
feed = DataLoader(TensorDataset(torch.randn(32, 5), torch.randn(32, 1)), batch_size=4)
net, sgd, feed = helper.prepare(net, sgd, feed)
for x, y in feed:
    with helper.accumulate(net):
        loss = torch.nn.functional.mse_loss(net(x), y)
        helper.backward(loss)
        sgd.step()
        sgd.zero_grad()
