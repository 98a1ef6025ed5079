"""What a trained run cannot tell, head by head and as a whole, as a result document and as rows of a table."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from rove_jax.analysis import model_swap
from rove_jax.analysis.capture import Captured, capture_qkv, score_rotation
from rove_jax.analysis.failures import failure_rates
from rove_jax.analysis.quantization import dtype_name
from rove_jax.config import Model, ScalingRule
from rove_jax.errors import require
from rove_jax.evaluation import results
from rove_jax.evaluation.intervals import wilson
from rove_jax.evaluation.processes import progress
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
        require(self.seed >= 0, "--seed", self.seed, "must be at least 0")
        require(self.swaps >= 0, "--swaps", self.swaps, "must be at least 0")
        if self.swap_length is not None:
            require(8 <= self.swap_length <= LONGEST, "--swap-length", self.swap_length, f"from 8 to {LONGEST}")
        dtype_name(self.dtype)


def texts(run: Run, count: int, length: int | None = None, *, option: str = "--length") -> np.ndarray:
    """The first `length` tokens (None: as many as in training) of `count` validation documents: int32 [B, T].

    Fewer documents if there are no more so long ones; raises `UsageError` naming the `option` if there is none.
    """
    length = length or run.config.data.context_length
    protocol = Protocol((length,), ("none",), documents=count, mode="first_n", prefix="none")
    documents = open_data(run).documents("validation")
    most = int(max(documents.lengths(), default=0)) - 1
    require(length <= most, option, length, f"the longest held-out document is good for {most} tokens; ask for fewer")
    found = choose(documents, protocol)
    return np.stack([document.tokens[:length] for document in found]).astype(np.int32)


def check_heads(cfg: Model, asked: Asked) -> None:
    """Raise `UsageError` unless the model has the layers and heads asked for."""
    for name, chosen, count in (("--layers", asked.layers, cfg.layers), ("--heads", asked.heads, cfg.query_heads)):
        for index in chosen or ():
            require(0 <= index < count, name, index, f"the model has 0 to {count - 1}")


def captured_text(run: Run, asked: Asked) -> Captured:
    """Queries, keys and values of the heads asked for on `texts`."""
    check_heads(run.config.model, asked)
    return capture_qkv(run.config.model, run.params, texts(run, asked.documents), asked.layers, asked.heads)


def measure_limits(run: Run, asked: Asked) -> dict:
    """A result document of `failure_rates`; in it also `swapped_text` as `model_swaps`, and the summaries
    `swaps_by_length` and `model_swaps_by_kind`. A progress bar on stderr."""
    cfg, trained = run.config.model, run.config.data.context_length
    score_rotation(cfg)
    lengths = asked.lengths or tuple(min(trained * factor, LONGEST) for factor in (1, 4, 16, 64))

    def at_length(length: int) -> Model:
        return scaled(cfg, asked.scaling, training_length=trained, length=length)

    check_heads(cfg, asked)
    at_length(max(lengths))  # refuses before the long part what cannot be
    swaps = swapped_text(run, asked)
    captured = captured_text(run, asked)
    count = len(lengths) * len(captured.layers) * len(captured.heads)
    with progress(count, f"{run.workdir.name}: limits", "head") as bar:
        bar.now(f"{len(lengths)} lengths up to {max(lengths)}")
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
    summaries = {"swaps_by_length": swaps_by_length(document), "model_swaps_by_kind": model_swap.by_kind(swaps)}
    return {**document, **summaries, "model_swaps": swaps}


def swapped_text(run: Run, asked: Asked) -> list[dict]:
    """`model_swap.model_swaps` on texts of the run, as it reads `asked.swap_length`; an empty list for no swaps, or no
    two tokens that a query attends to."""
    if not asked.swaps:
        return []
    tokens = texts(run, asked.documents, asked.swap_length, option="--swap-length")
    trained, length = run.config.data.context_length, tokens.shape[1]
    cfg = scaled(run.config.model, asked.scaling, training_length=trained, length=length)
    captured = capture_qkv(cfg, run.params, tokens, (0,))
    places = model_swap.find_places(cfg, captured, asked.swaps, dtype=asked.dtype, seed=asked.seed)
    with progress(len(places), f"{run.workdir.name}: swaps in a text", "swap") as bar:
        return model_swap.model_swaps(cfg, run.params, tokens, places, dtype=asked.dtype, advance=bar.update)


def mean_over_heads(document: dict, name: str) -> dict[int, float | None]:
    """The mean of one field over layers and heads, by length; None where no head has a number."""
    found: dict[int, Any] = {}
    for record in document["results"]:
        found.setdefault(record["length"], []).append(record[name])
    present = {length: [v for v in values if v is not None] for length, values in found.items()}
    return {length: float(np.mean(values)) if values else None for length, values in present.items()}


SWAP_FIELDS = ("swap_unseen", "swap_unseen_context", "swap_change", "swap_change_context")


def swaps_by_length(document: dict) -> list[dict]:
    """What the means of `SWAP_FIELDS` rest on, by length: a record with the length and

    heads: with any pair of places where both keys score the same, of `of`, and how many of their draws have one and how
    many pairs were taken; each field's mean over those heads (None: none has); and for shares `intervals`, Wilson's 95%
    as if each draw were one answer, since the pairs of a draw are alike. Raises `UsageError` for a result without
    counts.
    """
    found = []
    for length in dict.fromkeys(record["length"] for record in document["results"]):
        every = [record for record in document["results"] if record["length"] == length]
        known = all("swap_draws" in record for record in every)
        name = document.get("provenance", {}).get("run")
        require(known, "--results", name, "has no counts of swaps; evaluate the run again")
        own = [record for record in every if record["swap_draws"]]
        means = {name: float(np.mean([record[name] for record in own])) if own else None for name in SWAP_FIELDS}
        draws = sum(record["swap_draws"] for record in own)
        intervals = {name: list(wilson((means[name] or 0) * draws, draws)) for name in SWAP_FIELDS[:2]} if own else {}
        pairs = sum(record["swap_trials"] for record in own)
        counts = {"length": length, "heads": len(own), "of": len(every), "draws": draws, "pairs": pairs}
        found.append({**counts, **means, "intervals": intervals})
    return found
