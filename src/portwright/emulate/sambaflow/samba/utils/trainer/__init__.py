"""sambaflow.samba.utils.trainer."""
