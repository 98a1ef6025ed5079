"""Every setting of a run, as frozen dataclasses. Imports neither jax nor numpy.

A recipe builds one `Config`; the command line replaces single fields; the run folder and every checkpoint keep it as
JSON. A value is checked where it is made, so that a `Config` that exists is a legal one.
"""

from rove_jax.config.model import TURNS, Backend, Model, Variant
from rove_jax.config.rotation import Rotary, Scaling, ScalingRule
from rove_jax.config.run import Config, Data, Evaluation, Mesh, Optimizer, Training
from rove_jax.config.serial import fingerprint, from_dict, to_dict

__all__ = [
    "TURNS",
    "Backend",
    "Config",
    "Data",
    "Evaluation",
    "Mesh",
    "Model",
    "Optimizer",
    "Rotary",
    "Scaling",
    "ScalingRule",
    "Training",
    "Variant",
    "fingerprint",
    "from_dict",
    "to_dict",
]
