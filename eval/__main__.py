"""`python -m eval JOB ...` from a checkout."""

import sys

try:
    from rove_jax.cli.eval import main
except KeyboardInterrupt:  # in the tenths of a second before `main` looks for it
    print("error: interrupted", file=sys.stderr)
    sys.exit(130)

sys.exit(main())
