"""A training script, or a package with one, turned into model.py, data.py, utils.py, configs/params.yaml and run.py."""
