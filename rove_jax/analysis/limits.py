"""What a trained run cannot tell, head by head and as a whole, as a result document and as rows of a table."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from rove_jax.analysis import model_swap
from rove_jax.analysis.capture import Captured, capture_qkv, score_rotation
from rove_jax.analysis.failures import failure_rates
from rove_jax.analysis.quantization import dtype_name
from rove_jax.config import Model, ScalingRule
from rove_jax.errors import require
from rove_jax.evaluation import results
from rove_jax.evaluation.protocol import Protocol, choose, scaled
from rove_jax.evaluation.runs import Run, open_data

LONGEST = 2**20


@dataclass(frozen=True)
class Asked:
    """What is measured."""

    lengths: tuple[int, ...] = ()
    """Contexts M whose distances are swept. Empty: 1, 4, 16 and 64 times the training length."""
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    """Query heads. None: all."""
    draws: int = 8
    """Queries, each with two keys."""
    dtype: str = "bfloat16"
    """In which scores and outputs are equal."""
    scaling: ScalingRule = "none"
    """Of frequencies, beyond the training length, by length / training length."""
    documents: int = 4
    """Texts that queries and keys are drawn from."""
    swaps: int = 24
    """Of two tokens in a text, read by the whole model, and as many to compare with. 0: none."""
    swap_length: int | None = None
    """Tokens of those texts. None: as in training."""
    seed: int = 0

    def __post_init__(self) -> None:
        for length in self.lengths:
            require(4 <= length <= LONGEST, "--lengths", length, f"must lie between 4 and {LONGEST}")
        require(len(set(self.lengths)) == len(self.lengths), "--lengths", self.lengths, "must differ from each other")
        require(1 <= self.draws <= 4096, "--draws", self.draws, "must lie between 1 and 4096")
        require(self.documents >= 1, "--documents", self.documents, "must be at least 1")
        require(self.swaps >= 0, "--swaps", self.swaps, "must be at least 0")
        if self.swap_length is not None:
            require(8 <= self.swap_length <= LONGEST, "--swap-length", self.swap_length, f"from 8 to {LONGEST}")
        dtype_name(self.dtype)


def texts(run: Run, count: int, length: int | None = None) -> np.ndarray:
    """The first `length` tokens (None: as many as in training) of `count` validation documents: int32 [B, T].

    Fewer documents if there are no more so long ones; raises `UsageError` if there is none.
    """
    length = length or run.config.data.context_length
    protocol = Protocol((length,), ("none",), documents=count, mode="first_n", prefix="none")
    found = choose(open_data(run).documents("validation"), protocol)
    return np.stack([document.tokens[:length] for document in found]).astype(np.int32)


def captured_text(run: Run, asked: Asked) -> Captured:
    """Queries, keys and values of the heads asked for on `texts`."""
    return capture_qkv(run.config.model, run.params, texts(run, asked.documents), asked.layers, asked.heads)


def measure_limits(run: Run, asked: Asked) -> dict:
    """A result document of `failure_rates`, with those of `swapped_text` as `model_swaps`; a progress bar on stderr."""
    cfg, trained = run.config.model, run.config.data.context_length
    score_rotation(cfg)
    lengths = asked.lengths or tuple(min(trained * factor, LONGEST) for factor in (1, 4, 16, 64))

    def at_length(length: int) -> Model:
        return scaled(cfg, asked.scaling, training_length=trained, length=length)

    at_length(max(lengths))  # refuses before the long part what cannot be
    swaps = swapped_text(run, asked)
    captured = captured_text(run, asked)
    count = len(lengths) * len(captured.layers) * len(captured.heads)
    with tqdm(total=count, desc=f"{run.workdir.name}: limits", unit="head", disable=None, leave=False) as bar:
        records = failure_rates(
            at_length,
            captured,
            lengths=lengths,
            draws=asked.draws,
            dtype=asked.dtype,
            seed=asked.seed,
            advance=bar.update,
        )
    settings = {**dataclasses.asdict(asked), "lengths": lengths, "text_length": int(captured.query.shape[2])}
    settings["coefficients"] = "amplitudes and phases of the model's queries and keys, before rotation and 1/sqrt(H)"
    document = results.document("limits", run.provenance, settings, records)
    return {**document, "model_swaps": swaps}


def swapped_text(run: Run, asked: Asked) -> list[dict]:
    """`model_swap.model_swaps` on texts of the run, as it reads `asked.swap_length`; an empty list for no swaps, or no
    two tokens that a query attends to."""
    if not asked.swaps:
        return []
    tokens = texts(run, asked.documents, asked.swap_length)
    trained, length = run.config.data.context_length, tokens.shape[1]
    cfg = scaled(run.config.model, asked.scaling, training_length=trained, length=length)
    captured = capture_qkv(cfg, run.params, tokens, (0,))
    places = model_swap.find_places(cfg, captured, asked.swaps, dtype=asked.dtype, seed=asked.seed)
    with tqdm(total=len(places), desc=f"{run.workdir.name}: swaps", disable=None, leave=False) as bar:
        return model_swap.model_swaps(cfg, run.params, tokens, places, dtype=asked.dtype, advance=bar.update)


def mean_over_heads(document: dict, name: str) -> dict[int, float | None]:
    """The mean of one field over layers and heads, by length; None where no head has a number."""
    found: dict[int, Any] = {}
    for record in document["results"]:
        found.setdefault(record["length"], []).append(record[name])
    present = {length: [v for v in values if v is not None] for length, values in found.items()}
    return {length: float(np.mean(values)) if values else None for length, values in present.items()}
