"""Layer pipelined execution: a model cut into stages, micro-batches passing through them."""
