"""SambaFlow, emulated."""
