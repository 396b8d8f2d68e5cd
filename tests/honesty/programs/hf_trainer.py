import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Pairs(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(5, 60, (12,), generator=g), "labels": torch.tensor(i % 2)}


small = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
work = Trainer(
    model=BertForSequenceClassification(small),
    args=TrainingArguments("out", max_steps=4, per_device_train_batch_size=8, report_to=[]),
    train_dataset=Pairs(),
)
work.train()
