"""`python -m eval JOB ...` from a checkout."""

import sys

from rove_jax.cli.eval import main

sys.exit(main())
