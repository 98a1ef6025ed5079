"""Work that all processes of a run do together in stages, of which each may fail in one of them."""

import contextlib
import threading
from typing import Any


class Joint:
    """One such work, by a `name` that no other has. A stage ends when all have ended it, and if it failed in one
    process, it has failed in all. In a run of one process everything here returns at once.

    By the coordination service and not by collectives, so that threads may wait here while the devices compute.
    """

    def __init__(self, name: str) -> None:
        from jax._src import distributed  # not public (jax 0.10 to 0.12); as in `peers`

        self.client: Any = distributed.global_state.client
        self.index, self.name = distributed.global_state.process_id, name
        self.stage = 0
        """How many stages have ended, well in all processes."""
        self.over = self.client is None
        """Whether the others know already of a failure, or there are none."""

    @property
    def place(self) -> str:
        return f"rove/{self.name}/{self.stage}"

    def end_stage(self, timeout_ms: int = 10**9) -> None:
        """Return when all processes have ended this stage. Raises `RuntimeError` that says in which one it failed."""
        if self.client is not None:
            self.client.wait_at_barrier(self.place, timeout_ms)
            words = self.client.key_value_dir_get(f"{self.place}/failed")
            if words:
                self.over = True
                raise RuntimeError(min(words)[1])
        self.stage += 1

    def fail(self, reason: str) -> None:
        """Let the others know, as soon as they end this stage, that it failed here. Waits for nobody."""
        if self.over:
            return
        self.over = True
        place = self.place
        self.client.key_value_set(f"{place}/failed/{self.index}", f"process {self.index}: {reason}")

        def come() -> None:
            with contextlib.suppress(RuntimeError):  # another process died, which its peers tell of
                self.client.wait_at_barrier(place, 10**9)

        threading.Thread(target=come, name="joint", daemon=True).start()
