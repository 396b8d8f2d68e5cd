"""Imported by folders whose small data needs none of it."""
