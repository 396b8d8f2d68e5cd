"""sambaflow.samba.argconf."""
