import argparse

from engine.data import make_loaders
from engine.fitter import Fitter
from engine.net import Tagger

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()
    train, test = make_loaders(16)
    Fitter(Tagger(), options.lr).fit(train, test, options.epochs)
