"""HuggingFace's checkpoints read and written; each family of networks is one file here that says which tensor is which."""
