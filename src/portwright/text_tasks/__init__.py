"""Labelled text for fine-tuning: records from files, encoded to rows, and small tasks on the package's own text."""
