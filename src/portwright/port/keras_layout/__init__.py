"""`port --style layout` of a Keras script: model.compile() and fit() become model_fn, input functions and params.yaml."""
