"""Pictures of results are not looked at in a corpus run."""


def save_image(*args, **kwargs):
    return None


def make_grid(tensor, *args, **kwargs):
    return tensor
