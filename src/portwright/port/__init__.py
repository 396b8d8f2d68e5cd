"""The first flow: find what blocks a target in source code, and rewrite it. Nothing here imports torch."""
