"""What happens to requests that are longer than the model's training context: the choice `--overlong`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rove_jax.config import Model
from rove_jax.evaluation.engine import Engine, Request, Score
from rove_jax.evaluation.protocol import scaled

Overlong = Literal["truncate", "extrapolate", "yarn"]
"""truncate: the first tokens of the context are left out, end-of-text at its start with them; the continuation stays
whole, with at least one token before it. extrapolate: the model runs past its training length as it is. yarn: with
its rotations scaled by the factor length / training length."""


class Part(NamedTuple):
    """Requests that one model reads."""

    model: Model
    places: list[int]
    """Which of the requests."""
    requests: list[Request]
    """The same, cut where they are to be."""


def fit(
    cfg: Model, requests: Sequence[Request], overlong: Overlong, *, training_length: int, length: int | None = None
) -> tuple[list[Part], list[int]]:
    """(what to score with which model, how many tokens of each request were left out).

    Args:
        training_length: most tokens of a context and its continuation together, in training.
        length: yarn: read all requests as texts of this many tokens, so with one factor, however short they are. None:
            each with the smallest power of two that its own length asks for, so 1 within the training length.
    """
    if overlong == "truncate":
        kept = [cut(request, training_length) for request in requests]
        removed = [len(old.context) - len(new.context) for old, new in zip(requests, kept)]
        return [Part(cfg, list(range(len(kept))), kept)] if kept else [], removed
    parts: dict[Model, Part] = {}
    for place, request in enumerate(requests):
        model = cfg
        if overlong == "yarn":
            size = sum(map(len, request)) - 1  # the last token is only predicted
            factor = 1 << max(0, -(-size // training_length) - 1).bit_length()
            model = scaled(cfg, "yarn", training_length=training_length, length=length or factor * training_length)
        part = parts.setdefault(model, Part(model, [], []))
        part.places.append(place)
        part.requests.append(request)
    return list(parts.values()), [0] * len(requests)


def cut(request: Request, limit: int) -> Request:
    """The request with the last tokens of its context, `limit` tokens in all where the continuation leaves room."""
    room = max(1, limit - len(request.continuation))
    return Request(request.context[-room:], request.continuation)


def score(
    cfg: Model,
    params: dict,
    requests: Sequence[Request],
    overlong: Overlong,
    *,
    training_length: int,
    length: int | None = None,
    advance: Callable[[int], object] = lambda done: None,
    batch_size: int | None = None,
    mesh: Any = None,
) -> tuple[list[Score], list[int]]:
    """(scores of all requests in their order, how many tokens of each were left out). Arguments as in `fit`."""
    parts, removed = fit(cfg, requests, overlong, training_length=training_length, length=length)
    scores: list[Any] = [None] * len(requests)
    for part in parts:
        found = Engine(part.model, params, batch_size=batch_size, mesh=mesh).score(part.requests, advance)
        for place, one in zip(part.places, found):
            scores[place] = one
    return scores, removed
