"""The result document of a plan."""

from collections.abc import Callable
from typing import Any

from rove_jax import config
from rove_jax.evaluation import results
from rove_jax.models import accounting
from rove_jax.planning import proposal, recipe, sheets, topology
from rove_jax.training import machine


def make(
    name: str, settings: config.Config, machines: str, compiles: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The plan of the recipe called `name` on the topology `machines`, from at most `compiles` programs.

    `say` is called with a line when a program is begun and when it is done. Raises `UsageError` for what cannot be.
    """
    devices = topology.devices(machines)
    known = sheets.sheet(devices[0])
    provenance = {
        "device": devices[0].device_kind,
        "platform": devices[0].platform,
        "devices": len(devices),
        "topology": machines,
        "compiler": topology.compiler(machines),
        "commit": machine.commit(),
        "usable_source": known.usable_source if known else "not known for this device",
        "links_source": known.links_source if known else "",
        **machine.compiler_flags(),
    }
    asked = {
        "recipe": name,
        "config": config.to_dict(settings),
        "parameters": accounting.parameter_count(settings.model),
        "batch_size": settings.training.batch_size,
        "context_length": settings.data.context_length,
        "steps": settings.training.steps,
        "compiles": compiles,
        "sources": recipe.SOURCES,
        "assumptions": list(recipe.ASSUMPTIONS),
    }
    records = proposal.propose(settings, devices, topology.hosts(machines), compiles, say)
    return results.document("run-plan", provenance, asked, records)
