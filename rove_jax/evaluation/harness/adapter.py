"""A trained run as lm_eval sees a model: log-likelihoods, rolling log-likelihoods, generated text."""

import importlib.metadata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from rove_jax.config import Model
from rove_jax.distributed import screen
from rove_jax.errors import RunError, UsageError, require, require_choice
from rove_jax.evaluation import overlong as overlong_requests
from rove_jax.evaluation import packing, runs
from rove_jax.evaluation.engine import Engine, Request
from rove_jax.evaluation.harness import generation
from rove_jax.evaluation.harness.pairs import Pair, begun, encode_pair, fit, last, windows
from rove_jax.evaluation.overlong import Overlong
from rove_jax.evaluation.protocol import Prefix

BLOCK = 4_096
"""Requests scored together; results are put in lm_eval's cache block by block."""
ROWS = 8
"""Texts that are generated at once unless a batch size is given."""
LONGEST = 2**20
"""Positions that rotations are exact for."""


class Uncached:
    """What lm_eval's cache looks like where there is none."""

    def add_partial(self, kind: str, args: Any, result: Any) -> None:
        """Keep nothing."""


class Adapter:
    """A checkpoint as lm_eval's model. It needs no lm_eval by itself: requests are objects with `args`.

    What it does to requests is counted in `counts`: `apart` (a token spans the join of context and continuation),
    `truncated` (the beginning of the context left out), `beyond` (a continuation longer than `max_length` by itself).
    """

    tokenizer = None  # lm_eval looks here for a chat template
    cache_hook: Any = Uncached()  # set by lm_eval

    def __init__(
        self,
        workdir: str | Path | runs.Run,
        step: runs.Step = "last",
        overlong: Overlong = "truncate",
        max_length: int | None = None,
        prefix: Prefix | Literal["trained"] | None = "trained",
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        """Open the run. Arguments may be the strings of lm_eval's `--model_args`.

        Args:
            overlong: what happens to requests of more than `max_length` tokens; extrapolate and yarn read them whole.
            max_length: tokens that are read at once, and of windows of rolling requests. None: the training length
                (without a limit on requests if they are to be read whole).
            prefix: end-of-text before each context and document, also before every window, or nowhere (none, or None,
                which lm_eval makes of the text); trained: as in training. An empty context, and the first token of a
                document, always have it before them.
            batch_size: rows at once; "auto" or None: chosen.
            max_batch_size: not needed.
            device: not needed: all there are.
        """
        super().__init__()
        require_choice("overlong", overlong, Overlong)
        prefix = prefix or "none"
        if prefix != "trained":
            require_choice("prefix", prefix, Prefix)
        require(max_length is None or 2 <= max_length <= LONGEST, "max_length", max_length, "must lie in [2, 2^20]")
        run = workdir if isinstance(workdir, runs.Run) else runs.open_run(Path(workdir), step=step)
        trained = run.config.data.context_length
        self.run, self.overlong, self.training_length = run, overlong, trained
        self.window = max_length or trained
        self.max_length = max_length or (trained if overlong == "truncate" else LONGEST)
        # Where documents were trained apart, none of them has ever followed an end-of-text token.
        trained_with: Prefix = "none" if run.config.data.segments else "document"
        self.prefix: Prefix = trained_with if prefix == "trained" else prefix
        self.batch_size = rows_at_once(batch_size)
        self.engine = Engine(run.config.model, run.params, batch_size=self.batch_size)
        self.counts: Counter[str] = Counter()

    @property
    def eot_token_id(self) -> int:
        """The id that ends documents, and stands before them."""
        return self.run.tokenizer.eot

    @property
    def tokenizer_name(self) -> str:
        """For the keys of lm_eval's request cache."""
        return f"{self.run.tokenizer.name}-{self.run.origin.tokenizer_identity[:16]}"

    def get_model_info(self) -> dict[str, Any]:
        """What identifies the checkpoint; lm_eval puts it beside its results."""
        return self.run.provenance

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The ids of a text; special ones are put before it by `pairs` alone, so never here."""
        return self.run.tokenizer.encode(string).tolist()

    def pair(self, context: str, continuation: str) -> Pair:
        """Both in tokens."""
        return encode_pair(self.tok_encode, context, continuation, eot=self.eot_token_id, prefix=self.prefix)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        pair = self.pair(context, continuation)
        return pair.context, pair.continuation

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(sum of ln p of the continuation, whether each of its tokens is the most likely one), in request order.

        `args` of a request: (context, continuation).
        """
        pairs = [self.pair(*request.args) for request in requests]
        self.counts["apart"] += sum(pair.apart for pair in pairs)
        asked = [(request.args, pair.context, pair.continuation) for request, pair in zip(requests, pairs)]
        return self._loglikelihood_tokens(asked, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        pairs = [self.fitted(Pair(context, continuation)) for _, context, continuation in requests]
        found: list[tuple[float, bool]] = []
        with tqdm(
            total=len(pairs), desc="rove_jax: likelihoods", disable=disable_tqdm or None, leave=False, **screen()
        ) as bar:
            for first in range(0, len(pairs), BLOCK):
                block = self.likelihoods(pairs[first : first + BLOCK], bar)
                for (names, *_), result in zip(requests[first:], block):
                    if names is not None:
                        self.cache_hook.add_partial("loglikelihood", names, result)
                found += block
        return found

    def fitted(self, pair: Pair) -> Pair:
        """The pair as it is read, counted if that is not the whole."""
        kept = fit(pair, self.max_length, eot=self.eot_token_id, prefix=self.prefix)
        self.counts["truncated"] += kept is not pair
        self.counts["beyond"] += len(pair.continuation) > self.max_length
        return kept

    def likelihoods(self, pairs: Sequence[Pair], bar: Any) -> list[tuple[float, bool]]:
        """(sum of ln p, greedy) of each; a continuation of no tokens is certain."""
        found = [(0.0, True)] * len(pairs)
        places = [place for place, pair in enumerate(pairs) if pair.continuation]
        bar.update(len(pairs) - len(places))
        requests = [
            Request(np.array(pairs[place].context, np.int32), np.array(pairs[place].continuation, np.int32))
            for place in places
        ]
        for model, part in self.parts(requests):
            scores = self.engine.reading(model).score([requests[number] for number in part], bar.update)
            for number, score in zip(part, scores):
                total = float(score.nlls.sum(dtype=np.float64))
                if not np.isfinite(total):
                    raise RunError(f"the model gives a likelihood that is not finite ({total})")
                found[places[number]] = (-total, bool(score.greedy.all()))
        return found

    def parts(self, requests: Sequence[Request]) -> Iterator[tuple[Model, list[int]]]:
        """(model, which requests it reads): one model unless longer ones are read with other rotations."""
        whole: Overlong = "yarn" if self.overlong == "yarn" else "extrapolate"  # what is too long has been cut
        parts, _ = overlong_requests.fit(self.run.config.model, requests, whole, training_length=self.training_length)
        return ((part.model, part.places) for part in parts)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """The sum of ln p of each document, every token scored once: a float, or from lm_eval 0.5 on (float, False).

        The last of a request's `args` is the document.
        """
        asked, counts = [], []
        for request in requests:
            tokens = self.tok_encode(request.args[-1])
            parts = list(windows(tokens, self.window, eot=self.eot_token_id, prefix=self.prefix))
            asked += [(None, part.context, part.continuation) for part in parts]
            counts.append(len(parts))
        likelihoods = iter(self._loglikelihood_tokens(asked, disable_tqdm=disable_tqdm))
        found = []
        for request, count in zip(requests, counts):
            total = float(sum(next(likelihoods)[0] for _ in range(count)))
            result = (total, False) if rolling_in_pairs() else total
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, result)
            found.append(result)
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """A text for each request, without its prompt and its stop. `args`: (context, generation_kwargs)."""
        asked = [generation.read_settings(request.args[1]) for request in requests]
        prompts = [self.prompt(request.args[0], one.tokens) for request, one in zip(requests, asked)]
        # A prompt asked for again is to be drawn anew, whatever stands between.
        seen: Counter[str] = Counter()
        seeds = []
        for request in requests:
            context = request.args[0]
            seeds.append((zlib.crc32(context.encode("utf-8", "replace")) + seen[context]) % 2**32)
            seen[context] += 1
        lengths = [Request(np.array(p), np.zeros(one.tokens, np.int32)) for p, one in zip(prompts, asked)]
        groups: dict[Any, list[int]] = {}
        for model, places in self.parts(lengths):
            for place in places:
                groups.setdefault((model, asked[place].tokens, asked[place].sampling), []).append(place)
        found = [""] * len(requests)
        with tqdm(
            total=len(requests), desc="rove_jax: texts", disable=disable_tqdm or None, leave=False, **screen()
        ) as bar:
            for (model, *_), group in groups.items():
                group.sort(key=lambda place: -len(prompts[place]))  # what needs most memory first, like with like
                size = min(self.batch_size or ROWS, packing.power(len(group)))
                for first in range(0, len(group), size):
                    part = group[first : first + size]
                    texts = generation.texts(
                        model,
                        self.run.params,
                        self.run.tokenizer,
                        [prompts[place] for place in part],
                        [asked[place] for place in part],
                        [seeds[place] for place in part],
                        rows=size,
                    )
                    for place, text in zip(part, texts):
                        found[place] = text
                        self.cache_hook.add_partial("generate_until", requests[place].args, text)
                    bar.update(len(part))
        return found

    def prompt(self, context: str, new: int) -> list[int]:
        """The tokens of a context, its first ones left out so that `new` more fit."""
        tokens = begun(self.tok_encode(context), self.eot_token_id, self.prefix)
        room = self.max_length - new
        if room < 1:
            raise UsageError(
                f"max_gen_toks = {new}: leaves no room for a prompt in max_length = {self.max_length}; "
                "ask for fewer (--max-gen-tokens), or read past it (--overlong extrapolate)"
            )
        self.counts["truncated"] += len(tokens) > room
        return tokens if len(tokens) <= room else last(tokens, room, self.eot_token_id, self.prefix)


def rows_at_once(given: int | str | None) -> int | None:
    """lm_eval's batch size, which may be text; None: chosen."""
    if given is None or str(given).startswith("auto"):
        return None
    require(str(given).isdecimal() and int(given) >= 1, "batch_size", given, "must be at least 1, or auto")
    return int(given)


def rolling_in_pairs() -> bool:
    """Whether the installed lm_eval, 0.5 or later, wants (float, False) for rolling requests."""
    try:
        major, minor = importlib.metadata.version("lm_eval").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (0, 5)
