"""Ready-made models: linear, deep, both together, and a baseline, with the heads that turn logits into losses."""
