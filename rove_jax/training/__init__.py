"""Training: optimizer, step, checkpoints, metrics, and the loop that joins them. Entry: `rove_jax.training.loop.run`."""
