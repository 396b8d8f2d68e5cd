"""Runs NCF's main.py with its data where it is, not in its author's home."""

import runpy
from pathlib import Path

import config

config.train_rating = "ml-1m.train.rating"
config.test_negative = "ml-1m.test.negative"
runpy.run_path(str(Path(__file__).with_name("main.py")), run_name="__main__")
