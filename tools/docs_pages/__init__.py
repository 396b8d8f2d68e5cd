"""Generated pages of docs/ that need more than a table."""
