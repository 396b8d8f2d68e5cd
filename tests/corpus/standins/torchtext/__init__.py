"""Not torchtext: examples that are lists of words, batched time first as its old iterators did."""
