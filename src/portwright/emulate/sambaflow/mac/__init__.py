"""sambaflow.mac: the compiler."""
