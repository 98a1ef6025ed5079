"""Stopping together: a signal to one process of a run ends all of them at the same update."""

from signal import Signals

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rove_jax import distributed, sharding
from rove_jax.training.stop import EXIT_CODES, StopRequest

VOTE = "signal"
"""Its name among the numbers of an update."""


class Agreement:
    """What all processes know of each other's wish to stop.

    With each update goes the highest number of a signal that any process has got, and its numbers are read by all of
    them at the same place in the loop; one element per device is reduced for it. Alone, a process just looks at its
    own request.
    """

    def __init__(self, request: StopRequest, mesh: jax.sharding.Mesh) -> None:
        self.request = request
        self.agreed: Signals | None = None
        self.together = jax.process_count() > 1
        if self.together:
            where = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
            self.votes = {
                number: jax.make_array_from_callback(
                    (mesh.size,), where, lambda _, number=number: np.full(1, number, np.int32)
                )
                for number in (0, *EXIT_CODES)
            }
            highest = jax.jit(jnp.max, out_shardings=sharding.replicated(mesh))
            self.highest = highest.lower(self.votes[0]).compile()

    @property
    def signal(self) -> Signals | None:
        """The signal on which this process, and so all of them, is to stop now."""
        return self.agreed if self.together else self.request.signal

    def vote(self) -> dict[str, jax.Array]:
        """To be added to the numbers of the update that has just been dispatched."""
        return {VOTE: self.highest(self.votes[self.request.signal or 0])} if self.together else {}

    def count(self, numbers: dict[str, float]) -> None:
        """Take the vote out of the numbers of an update."""
        number = int(numbers.pop(VOTE, 0))
        if number:
            self.agreed = Signals(number)

    def ask(self) -> Signals | None:
        """Vote and count at once, which waits for all processes: before the first update."""
        distributed.meet("first update")  # on a CPU, collectives give up on others after 30 s, be they still compiling
        self.count({name: float(value) for name, value in jax.device_get(self.vote()).items()})
        return self.signal
