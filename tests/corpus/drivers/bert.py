"""Calls what the project's `bert` command calls."""

from bert_pytorch.__main__ import train

train()
