"""Not lmdb: imported by datasets that the corpus does not use."""
