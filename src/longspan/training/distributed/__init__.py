"""Several processes that train one run: the process group, and models and optimizers across it."""
