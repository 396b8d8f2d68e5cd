"""Weight streaming: a model whose weights and optimizer state live in host memory and pass through the device layer by layer."""
