"""Imported by projects of the corpus, never called."""
