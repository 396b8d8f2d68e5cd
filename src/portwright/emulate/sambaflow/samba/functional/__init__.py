"""sambaflow.samba.functional."""
