"""Adds a vendor's branch to a script in place: `portwright port --style branches`."""
