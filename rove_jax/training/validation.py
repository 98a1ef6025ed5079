"""Validation loss: mean nats per token over the same tokens of the validation split each time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rove_jax import distributed, losses, sharding
from rove_jax.data import pipeline
from rove_jax.data.prepared import Prepared
from rove_jax.training.setup import Setup


class Validation:
    """Compiled on first use; nothing is donated, since training goes on with the parameters."""

    def __init__(self, setup: Setup, prepared: Prepared, eot: int) -> None:
        self.setup, self.prepared, self.eot = setup, prepared, eot
        training = setup.settings.training
        self.rows = training.batch_size // training.accumulation
        self.compiled: Any = None

    def loss(self, params: Any) -> float:
        """Mean negative log-likelihood, sums added up in float64 on the host."""
        if self.compiled is None:
            self.compiled = self.compile()
            distributed.meet("validation")  # as before the first update: see `agreement`
        batches = pipeline.validation_batches(
            self.prepared,
            batch_size=self.rows,
            tokens=self.setup.settings.training.validation_tokens,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        where = sharding.batch(self.setup.mesh)
        sums = [
            self.compiled(params, *(jax.make_array_from_process_local_data(where, part) for part in batch))
            for batch in batches
        ]
        total, weight = np.asarray(jax.device_get(sums), np.float64).sum(axis=0)
        return float(total / weight)

    def compile(self) -> Any:
        cfg, where = self.setup.settings, sharding.batch(self.setup.mesh)

        def score(params: Any, tokens: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
            return losses.next_token_loss(
                self.setup.model, params, tokens, eot=self.eot, segments=cfg.data.segments, rows=rows
            )

        tokens = jax.ShapeDtypeStruct((self.rows, cfg.data.context_length + 1), jnp.int32, sharding=where)
        rows = jax.ShapeDtypeStruct((self.rows,), jnp.float32, sharding=where)
        whole = sharding.replicated(self.setup.mesh)
        with jax.set_mesh(self.setup.mesh):
            return jax.jit(score, out_shardings=whole).lower(self.setup.target.params, tokens, rows).compile()
