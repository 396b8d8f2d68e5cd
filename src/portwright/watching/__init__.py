"""Shared by all parts that observe a running step: trees of tensors, places in the user's code, random states."""
