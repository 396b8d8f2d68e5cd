"""What ROUGE needs of it."""


def ngrams(sequence, n):
    items = list(sequence)
    return zip(*(items[start:] for start in range(n)), strict=False)
