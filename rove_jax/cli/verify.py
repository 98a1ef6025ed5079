"""`python -m train verify --workdir DIR`: whether the checkpoints of a run are, bit for bit, what was saved."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove_jax.cli import exits
from rove_jax.errors import RunError, UsageError

NAMED = 3
"""How many damaged arrays of a checkpoint are named."""


def main(argv: Sequence[str] | None = None) -> int:
    """Verify; returns the exit code of the process: 0 if everything is whole, 1 if something is damaged."""
    return exits.run(lambda: verify(parser().parse_args(argv)))


def parser() -> exits.Parser:
    """The arguments."""
    top = exits.Parser(
        prog="train verify",
        description="Read every array of the checkpoints of a run and compare its digest with the one that was stored "
        "with it. Runs on the CPU, needs neither the data nor the devices of the run, holds one array in memory at a "
        "time, changes nothing, and may run beside the training.",
    )
    top.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="the folder of a run")
    top.add_argument("--step", type=int, metavar="N", help="the checkpoint of this step alone (default: all)")
    return top


def verify(arguments: argparse.Namespace) -> int:
    """What `main` does, errors raised."""
    import jax

    from rove_jax import storage
    from rove_jax.training.checkpoints import Checkpoints

    jax.config.update("jax_platforms", "cpu")  # the accelerators may be in the hands of the run itself
    arguments.workdir = storage.place(arguments.workdir)
    storage.check(arguments.workdir)
    if not arguments.workdir.is_dir():
        raise UsageError(f"--workdir {arguments.workdir}: no such folder; give the folder of a training run")
    with Checkpoints(arguments.workdir) as checkpoints:
        steps = sorted([*checkpoints.losses, *checkpoints.damaged])
        if not steps:
            raise UsageError(f"{checkpoints.folder}: no checkpoint is saved there")
        if arguments.step is not None and arguments.step not in steps:
            there = ", ".join(map(str, steps))
            raise UsageError(f"--step {arguments.step}: no such checkpoint in {arguments.workdir}; there are {there}")
        chosen = steps if arguments.step is None else [arguments.step]
        bad = [step for step in chosen if not whole(step, checkpoints.stored(step))]
    if bad:
        named = ", ".join(map(str, bad))
        back = "a run that goes on steps back to the newest whole one"
        then = back if len(bad) < len(steps) else "none is left that the run could go on from"
        raise RunError(f"{len(bad)} of {len(chosen)} damaged ({named}); {then}")
    return 0


def whole(step: int, stored: Any) -> bool:
    """Examine a checkpoint (a `Stored`), print a line about it, and return whether it is whole, or gone by now."""
    from tqdm import tqdm

    from rove_jax.distributed import screen
    from rove_jax.training.checkpoints.shelf import there
    from rove_jax.training.checkpoints.stored import DAMAGED, Damaged

    faults, count, size = [], 0, 0
    try:
        total = sum(map(len, stored.metadata()["arrays"].values()))
        with tqdm(desc=f"step {step}", total=total, unit="array", disable=None, leave=False, **screen()) as bar:
            for looked in stored.examine():
                bar.update()
                count, size = count + 1, size + looked.bytes
                faults += [looked.fault] if looked.fault else []
    except Damaged as error:
        faults.append(str(error).partition(DAMAGED)[2])
    if faults and not there(stored.where):
        print(f"step {step}: deleted by its run in the meantime", flush=True)
        return True
    more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    about = f"DAMAGED: {'; '.join(faults[:NAMED])}{more}" if faults else f"whole: {count} arrays, {size / 1e6:,.1f} MB"
    print(f"step {step}: {about}", flush=True)
    return not faults
