import torch
from ignite.engine import Events, create_supervised_trainer
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(4, 3)
engine = create_supervised_trainer(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.CrossEntropyLoss())


@engine.on(Events.EPOCH_COMPLETED)
def tell(engine):
    print(engine.state.epoch, engine.state.output)


engine.run(DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(3, (32,))), batch_size=8), max_epochs=2)
