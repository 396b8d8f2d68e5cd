"""sambaflow.samba.utils.dataset."""
