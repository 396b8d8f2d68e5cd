def get_pefmeta(a, m):
    return {}
