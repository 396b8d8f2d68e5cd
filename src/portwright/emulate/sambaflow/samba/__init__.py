"""sambaflow.samba, emulated."""
