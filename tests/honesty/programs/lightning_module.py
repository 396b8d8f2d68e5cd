import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regress(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.l1_loss(self.line(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


rows = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False).fit(Regress(), rows)
