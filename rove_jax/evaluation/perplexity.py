"""Perplexity against context length, with the figures that say where a mean over positions comes from."""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from rove_jax import rotary
from rove_jax.config import Model
from rove_jax.data.prepared import Document
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.errors import RunError
from rove_jax.evaluation.engine import Engine, Request
from rove_jax.evaluation.intervals import bootstrap
from rove_jax.evaluation.protocol import Protocol, Window, scaled, sequences


def perplexities(
    cfg: Model,
    params: dict,
    documents: Sequence[Document],
    protocol: Protocol,
    *,
    training_length: int,
    eot: int,
    token_bytes: np.ndarray,
    mesh: jax.sharding.Mesh | None = None,
    advance: Callable[[int], object] = lambda scored: None,
    now: Callable[[str], object] = lambda part: None,
) -> list[dict]:
    """One record per length and scaling of `protocol`, lengths outermost. See `measure` for what a record holds.

    Args:
        cfg: the model as trained.
        params: its parameters.
        documents: what `protocol.choose` returned; each has `id` and `tokens`.
        training_length: context length in tokens the model was trained on.
        eot: id of the end-of-text token.
        token_bytes: [V] bytes each token stands for; 0 for end-of-text.
        mesh: as in `Engine`.
        advance: told how many windows were scored. `window_count` says how many there will be.
        now: told which length and scaling comes.
    """
    records = []
    engine = Engine(cfg, params, mesh=mesh)
    values = protocol.value_scaling == "same"
    for length in protocol.lengths:
        parts = [sequences(document.tokens, length, protocol, eot) for document in documents]
        scored: dict[Model, dict] = {}  # scalings that leave the model as it is are computed once
        for rule in protocol.scalings:
            model = scaled(cfg, rule, training_length=training_length, length=length, values=values)
            if model not in scored:
                now(f"{length} tokens" + ("" if model == cfg else f", {rule}"))
                requests = [Request(row[:1], row[1:]) for part in parts for _, row in part]
                scores = iter(engine.reading(model).score(requests, advance, length=length))
                windows = [[(window, row, next(scores).nlls) for window, row in part] for part in parts]
                scored[model] = measure(windows, [d.id for d in documents], length, training_length, token_bytes)
            records.append(
                {
                    "length": length,
                    "scaling": rule,
                    "factor": length / training_length if model != cfg else 1.0,
                    "logit_scale": rotary.logit_scale(model.rotations[0]),
                    **scored[model],
                }
            )
    return records


def window_count(
    cfg: Model, documents: Sequence[Document], protocol: Protocol, *, training_length: int, eot: int
) -> int:
    """How many windows `perplexities` scores."""
    count = 0
    for length in protocol.lengths:
        rules = {
            scaled(cfg, rule, training_length=training_length, length=length, values=protocol.value_scaling == "same")
            for rule in protocol.scalings
        }
        count += len(rules) * sum(len(sequences(d.tokens, length, protocol, eot)) for d in documents)
    return count


def measure(
    documents: Sequence[Sequence[tuple[Window, np.ndarray, np.ndarray]]],
    ids: Sequence[str],
    length: int,
    training_length: int,
    token_bytes: np.ndarray,
) -> dict:
    """All figures of one length and scaling. NLLs are in nats per token, sums are float64.

    Args:
        documents: per document, per window: the window, its token sequence (T+1 or fewer), the NLLs of all but the
            first token.
        ids: the documents' ids.

    Returns:
        nll, perplexity: over all scored tokens; interval: of the perplexity, 95%, bootstrap over documents.
        perplexity_by_window: exp of the unweighted mean of window means (the YaRN authors' average).
        last: tokens (how many latest positions of a full window, min(256, T/2)), their perplexity and its interval.
        bits_per_byte, bytes: over tokens that stand for bytes; end-of-text is left out of both sums.
        positions: mean NLL by position in the window, in bins that double, the training length being an edge.
        documents: id, tokens, nll (a sum), and the same of last positions, of each; tokens, windows: how many were
            scored.

    Raises:
        RunError: a NLL is not finite.
    """
    last = min(256, length // 2)
    edges = position_edges(length, training_length)
    sums, counts, means = [], [], []
    late_sums, late_counts = [], []
    byte_count = byte_nll = 0
    bin_sums, bin_counts = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1, np.int64)
    for name, parts in zip(ids, documents):
        total = count = late_sum = late_count = 0
        for window, row, nll in parts:
            new = np.asarray(nll, np.float64)[-window.scored :]
            if not np.isfinite(new).all():
                raise RunError(f"document {name}: the model gives a non-finite likelihood at length {length}")
            place = np.arange(len(nll))[-window.scored :]
            total, count = total + new.sum(), count + len(new)
            means.append(new.mean())
            size = token_bytes[row[-window.scored :]]
            byte_count, byte_nll = byte_count + size.sum(), byte_nll + new[size > 0].sum()
            late = new[place >= length - last]
            late_sum, late_count = late_sum + late.sum(), late_count + len(late)
            which = np.searchsorted(edges, place, side="right") - 1
            np.add.at(bin_sums, which, new)
            np.add.at(bin_counts, which, 1)
        sums.append(total)
        counts.append(count)
        late_sums.append(late_sum)
        late_counts.append(late_count)
    nll = float(np.sum(sums) / np.sum(counts))
    return {
        "nll": nll,
        "perplexity": math.exp(nll),
        "interval": bootstrap(np.array(sums), np.array(counts)),
        "perplexity_by_window": math.exp(np.mean(means)),
        "last": {"tokens": last, **of_last(np.array(late_sums), np.array(late_counts))},
        "bits_per_byte": float(byte_nll / byte_count / math.log(2)) if byte_count else None,
        "bytes": int(byte_count),
        "tokens": int(np.sum(counts)),
        "windows": len(means),
        "positions": [
            {"from": int(start), "to": int(stop), "tokens": int(n), "nll": float(total / n)}
            for start, stop, n, total in zip(edges[:-1], edges[1:], bin_counts, bin_sums)
            if n
        ],
        "documents": [
            {"id": name, "tokens": int(n), "nll": float(total), "last_tokens": int(late_n), "last_nll": float(late)}
            for name, n, total, late_n, late in zip(ids, counts, sums, late_counts, late_sums)
        ],
    }


def of_last(sums: np.ndarray, counts: np.ndarray) -> dict:
    """Perplexity of the last positions and its 95% interval, from sums of documents; None where no window is full."""
    there = counts > 0
    if not there.any():
        return {"perplexity": None, "interval": None}
    return {
        "perplexity": math.exp(sums.sum() / counts.sum()),
        "interval": bootstrap(sums[there], counts[there]),
    }


def position_edges(length: int, training_length: int) -> np.ndarray:
    """Bins of positions [0, length): edges at 1/4, 1/2, 1, 2, 4, ... times the training length."""
    edges = {0, length}
    power = -2
    while (edge := int(training_length * 2.0**power)) < length:
        edges.add(edge)
        power += 1
    return np.array(sorted(edges))


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """[V] int64, the bytes each token stands for, from their raw bytes (text would miscount parts of a character)."""
    sizes = np.array([len(tokenizer.decode_bytes([token])) for token in range(tokenizer.vocab)], np.int64)
    sizes[tokenizer.eot] = 0
    return sizes
