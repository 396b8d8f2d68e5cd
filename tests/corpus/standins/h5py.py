"""Not h5py: imported by a dataset that the corpus does not use."""
