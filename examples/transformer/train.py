"""A plain PyTorch script, as tutorials write them: a transformer that learns which letter follows.

python train.py --epochs 2
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class AlphabetDataset(Dataset):
    """Slices of the alphabet from random starts: for a b c d the letters to say are b c d e."""

    def __init__(self, num_samples, seq_len, vocab_size, seed):
        starts = torch.Generator().manual_seed(seed)
        self.first = torch.randint(0, vocab_size - seq_len, (num_samples,), generator=starts)
        self.seq_len = seq_len

    def __len__(self):
        return len(self.first)

    def __getitem__(self, index):
        letters = self.first[index] + torch.arange(self.seq_len + 1)
        return letters[:-1], letters[1:]


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.encoder = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        encoder_layers = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout)
        self.transformer_encoder = nn.TransformerEncoder(encoder_layers, nlayers)
        self.decoder = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        self.encoder.weight.data.uniform_(-initrange, initrange)
        self.decoder.bias.data.zero_()
        self.decoder.weight.data.uniform_(-initrange, initrange)

    def forward(self, src, src_mask):
        src = self.encoder(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        output = self.transformer_encoder(src, src_mask)
        return self.decoder(output)


def generate_square_subsequent_mask(size):
    return torch.triu(torch.ones(size, size) * float("-inf"), diagonal=1)


def train(model, loader, criterion, optimizer, scheduler, device, args, epoch):
    model.train()
    total_loss, start = 0.0, time.time()
    mask = generate_square_subsequent_mask(args.seq_len).to(device)
    for batch, (letters, targets) in enumerate(loader):
        letters, targets = letters.t().to(device), targets.t().to(device)
        optimizer.zero_grad()
        output = model(letters, mask)
        loss = criterion(output.view(-1, args.vocab_size), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total_loss += loss.item()
        if (batch + 1) % args.log_interval == 0:
            rate = scheduler.get_last_lr()[0]
            mean = total_loss / args.log_interval
            print(
                f"epoch {epoch} batch {batch + 1}/{len(loader)} lr {rate:.4f} loss {mean:.4f} in {time.time() - start:.1f} s"
            )
            total_loss = 0.0


def evaluate(model, loader, criterion, device, args):
    model.eval()
    total, right, count = 0.0, 0, 0
    mask = generate_square_subsequent_mask(args.seq_len).to(device)
    with torch.no_grad():
        for letters, targets in loader:
            letters, targets = letters.t().to(device), targets.t().to(device)
            output = model(letters, mask)
            total += targets.numel() * criterion(output.view(-1, args.vocab_size), targets.reshape(-1)).item()
            right += (output.argmax(-1) == targets).sum().item()
            count += targets.numel()
    return total / count, right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--vocab-size", type=int, default=26)
    parser.add_argument("--seq-len", type=int, default=10)
    parser.add_argument("--emsize", type=int, default=64)
    parser.add_argument("--nhead", type=int, default=2)
    parser.add_argument("--nhid", type=int, default=64)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--log-interval", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1111)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = AlphabetDataset(8000, args.seq_len, args.vocab_size, seed=1)
    val_set = AlphabetDataset(800, args.seq_len, args.vocab_size, seed=2)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=0)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    model = TransformerModel(args.vocab_size, args.emsize, args.nhead, args.nhid, args.nlayers, args.dropout)
    model = model.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)

    for epoch in range(1, args.epochs + 1):
        train(model, train_loader, criterion, optimizer, scheduler, device, args, epoch)
        loss, accuracy = evaluate(model, val_loader, criterion, device, args)
        print(f"end of epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.3f}")
        scheduler.step()


if __name__ == "__main__":
    main()
