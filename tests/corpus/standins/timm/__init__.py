"""Not timm: the two layers of a vision transformer that a project of the corpus builds on, written plainly."""

__version__ = "0.3.2"
