"""`python -m train --config FILE --workdir DIR` from a checkout. The code is in `rove_jax.cli.train`."""
