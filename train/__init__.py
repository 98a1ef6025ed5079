"""What a person types to train, from a checkout: `python -m train --config FILE --workdir DIR`. See `rove_jax.cli.train`."""
