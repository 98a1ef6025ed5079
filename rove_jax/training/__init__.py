"""Training: optimizer, step, checkpoints, metrics and the loop that joins them, `rove_jax.training.loop.run`."""
