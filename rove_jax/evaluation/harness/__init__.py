"""Our models in the lm-evaluation-harness (`lm_eval` 0.4.13 to 0.5), by the name `rove_jax`.

`python -m eval harness` is the short way. From Python, where lm_eval finds no entry points yet (0.4.13, 0.5.0.dev1):

```python
from rove_jax.evaluation import harness
harness.register()
lm_eval.simple_evaluate(model="rove_jax", model_args={"workdir": "runs/rove"}, tasks=["lambada_openai"])
```

`adapter` needs no lm_eval; only the class that lm_eval is given, `RoveLM`, derives from one of lm_eval's, so it is made
when it is first asked for.
"""

import functools
import importlib.util
import os
from typing import Any

from rove_jax.errors import UsageError

NAME = "rove_jax"


def installed() -> bool:
    """Whether lm_eval is there."""
    return importlib.util.find_spec("lm_eval") is not None


def check_installed() -> None:
    """Raise `UsageError` naming the extra unless lm_eval is there."""
    if not installed():
        raise UsageError("eval harness: needs the package lm-eval; pip install 'rove-jax[harness]'")


def keep_from_forking() -> None:
    """Have lm_eval draw the standard errors of perplexities in this process: a fork of one with jax's threads may hang.

    To be called before lm_eval's parts are imported, since 0.5 reads its variable then.
    """
    for variable in ("DISABLE_MULTIPROC", "LMEVAL_DISABLE_MULTIPROC"):
        os.environ.setdefault(variable, "1")


def register() -> None:
    """Tell lm_eval of `rove_jax`, without importing jax. Does nothing the second time."""
    check_installed()
    keep_from_forking()
    from lm_eval.api.registry import model_registry  # pyright: ignore[reportMissingImports]

    if NAME not in model_registry:
        model_registry.register(NAME, target=f"{__name__}:RoveLM")


@functools.cache
def model_class() -> type:
    """`adapter.Adapter` as a subclass of lm_eval's `TemplateLM`."""
    check_installed()
    keep_from_forking()
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]

    from rove_jax.evaluation.harness.adapter import Adapter

    return type("RoveLM", (Adapter, TemplateLM), {"__doc__": Adapter.__doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "RoveLM":
        return model_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
