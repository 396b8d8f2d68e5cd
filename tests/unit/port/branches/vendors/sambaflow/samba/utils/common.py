def common_app_driver(*a, **k):
    pass
