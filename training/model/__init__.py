"""Models, their losses and optimizers, and the module of a training step."""
