"""Data read on some nodes and streamed to the one that trains: a pool of workers over gRPC, and batches as bytes."""
