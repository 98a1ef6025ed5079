"""What a task asks of generated text: where it stops, how long it may get, how it is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rove_jax.config import Model
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.errors import UsageError, require
from rove_jax.evaluation.generate import Sampling, generate

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks give the number of new tokens; the first one given counts, as in lm_eval."""
DEFAULT_TOKENS = 256
KNOWN = {"until", "do_sample", "temperature", "top_k", "top_p", *LENGTHS}
HARMLESS = {"num_beams": 1, "repetition_penalty": 1.0}
"""Settings that ask for what is done anyway."""


@dataclass(frozen=True)
class Asked:
    """The `generation_kwargs` of one request."""

    stops: tuple[str, ...]
    """The text ends before the first of them. It also ends where the model ends the document."""
    tokens: int
    """At most so many are generated."""
    sampling: Sampling


def read_settings(settings: Mapping[str, Any]) -> Asked:
    """`generation_kwargs` as lm_eval understands them: greedy unless `do_sample` or a temperature says otherwise.

    Raises `UsageError` for a setting that would change the text and is not known here.
    """
    for name, value in settings.items():
        if name not in KNOWN and HARMLESS.get(name) != value:
            raise UsageError(f"generation_kwargs: {name} = {value!r} is not known here; leave it out of the task")
    until = settings.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    require(all(isinstance(stop, str) for stop in stops), "until", until, "must be a text or a list of texts")
    given = [settings[name] for name in LENGTHS if settings.get(name) is not None]
    tokens = int(given[0]) if given else DEFAULT_TOKENS
    require(tokens >= 1, "max_gen_toks", tokens, "must be at least 1")
    temperature = float(settings.get("temperature") or 0.0)
    drawn = settings.get("do_sample")
    if drawn is False:
        temperature = 0.0
    elif drawn and "temperature" not in settings:
        temperature = 1.0
    greedy = temperature == 0.0
    sampling = Sampling(
        temperature, None if greedy else settings.get("top_k") or None, None if greedy else settings.get("top_p")
    )
    return Asked(tuple(stop for stop in stops if stop), tokens, sampling)


def stopped(text: str, stops: Sequence[str]) -> str:
    """`text` up to where the first of the stops in it begins."""
    places = [text.find(stop) for stop in stops]
    return text[: min((place for place in places if place >= 0), default=len(text))]


def texts(
    cfg: Model,
    params: dict,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    asked: Sequence[Asked],
    seeds: Sequence[int],
    *,
    rows: int,
) -> list[str]:
    """Generated texts, each without its prompt and its stop. `asked` differ in nothing but their stops.

    Args:
        rows: as many are generated at once, with empty prompts if there are fewer, so that a program serves again.
    """
    empty = rows - len(prompts)
    drawn: list[np.ndarray] = []

    def text(row: int) -> tuple[str, bool]:
        """What is kept of a row, and whether it has ended."""
        tokens = np.array([tokens_b[row] for tokens_b in drawn], np.int64)
        ends = np.flatnonzero(tokens == tokenizer.eot)
        whole = tokenizer.decode(tokens[: ends[0]] if len(ends) else tokens)
        kept = stopped(whole, asked[row].stops)
        return kept, len(ends) > 0 or len(kept) < len(whole)

    def emit(tokens_b: np.ndarray) -> bool:
        drawn.append(tokens_b)
        return all(text(row)[1] for row in range(len(prompts)))

    generate(
        cfg,
        params,
        [*prompts, *([tokenizer.eot],) * empty],
        max_new_tokens=asked[0].tokens,
        eot=tokenizer.eot,
        sampling=asked[0].sampling,
        seeds=[*seeds, *[0] * empty],
        emit=emit,
    )
    return [text(row)[0] for row in range(len(prompts))]
