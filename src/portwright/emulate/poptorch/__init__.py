"""PopTorch 3.4, emulated."""
