"""`python -m train`."""

import sys

try:
    from rove_jax.cli.train import main
except KeyboardInterrupt:  # in the tenth of a second before `main` looks for it
    print("error: interrupted", file=sys.stderr)
    sys.exit(130)

sys.exit(main())
