"""Reads and writes HuggingFace's checkpoints; one file for each family of networks maps its tensors to ours."""
