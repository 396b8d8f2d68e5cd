import torch
from parts import Encoder, get_runner


def main():
    model = Encoder(6)
    runner = get_runner(epochs=1)
    data = torch.utils.data.DataLoader(torch.randn(24, 6), batch_size=6)
    runner.fit(model, data)


if __name__ == "__main__":
    main()
