"""Imports TensorFlow without the notes that its C++ code prints during the import."""

from __future__ import annotations

import os
import sys
import tempfile

_NOTES = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")


def load_quietly() -> None:
    """Imports TensorFlow; what the import writes to stderr is printed afterwards, without the known notes."""
    if "tensorflow" in sys.modules:
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written:
                if not any(note in line for note in _NOTES):
                    os.write(2, line)
