"""What all processes of a run do at the same update, though one of them has the reason: stop, or see to a write."""

import itertools
from signal import Signals

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rove_jax import distributed, sharding
from rove_jax.training.checkpoints import RETRY, SETTLE
from rove_jax.training.stop import EXIT_CODES, StopRequest

SIGNAL, WISH = "signal", "wish"
"""The names of votes among the numbers of an update."""


class Agreement:
    """What all processes know of each other's wishes.

    With each update goes the highest number of a signal that any process has got, and what all of them would do about
    a write (`Checkpoints.wish`), or 0 while they differ. These numbers are read by all at the same place in the loop;
    two elements per device are reduced for them. Alone, a process just looks at its own request and its own wish.
    """

    def __init__(self, request: StopRequest, mesh: jax.sharding.Mesh) -> None:
        self.request = request
        self.agreed: Signals | None = None
        self.wish = 0
        """What all processes are to do about a write now."""
        self.together = jax.process_count() > 1
        if self.together:
            where = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
            self.votes: dict[tuple[int, int], jax.Array] = {
                vote: jax.make_array_from_callback(
                    (mesh.size, 2), where, lambda _, vote=vote: np.array([vote], np.int32)
                )
                for vote in itertools.product((0, *EXIT_CODES), (0, SETTLE, RETRY))
            }
            # Of what is wished the lowest: one write is at hand, so those that wish anything wish the same.
            count = jax.jit(
                lambda votes: (jnp.max(votes[:, 0]), jnp.min(votes[:, 1])), out_shardings=sharding.replicated(mesh)
            )
            self.result = count.lower(self.votes[0, 0]).compile()

    @property
    def signal(self) -> Signals | None:
        """The signal on which this process, and so all of them, is to stop now."""
        return self.agreed if self.together else self.request.signal

    def vote(self, wish: int = 0) -> dict[str, jax.Array]:
        """To be added to the numbers of the update that has just been dispatched."""
        if not self.together:
            self.wish = wish
            return {}
        return dict(zip((SIGNAL, WISH), self.result(self.votes[self.request.signal or 0, wish])))

    def count(self, numbers: dict[str, float]) -> None:
        """Take the votes out of the numbers of an update."""
        number, wish = int(numbers.pop(SIGNAL, 0)), int(numbers.pop(WISH, self.wish))
        self.wish = wish
        if number:
            self.agreed = Signals(number)

    def ask(self) -> Signals | None:
        """Vote and count at once, which waits for all processes: before the first update."""
        distributed.meet("first update")  # on a CPU, collectives give up on others after 30 s, be they still compiling
        self.count({name: float(value) for name, value in jax.device_get(self.vote()).items()})
        return self.signal
