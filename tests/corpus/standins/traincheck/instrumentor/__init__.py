meta_vars = {}
