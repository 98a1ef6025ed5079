"""`python -m train`."""

import sys

from rove_jax.cli.train import main

sys.exit(main())
