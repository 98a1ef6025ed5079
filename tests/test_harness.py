"""The adapter to lm_eval, without lm_eval: it conforms, and with any fault seen elsewhere it would not."""

from dataclasses import replace

import numpy as np
import pytest
from harness_runs import MODEL, Plain, run

from rove_jax.evaluation.harness import conformance
from rove_jax.evaluation.harness.conformance import LIMIT, request
from rove_jax.evaluation.harness.pairs import Pair

pytestmark = pytest.mark.slow  # a dozen programs are compiled
RUN = run()


def maker(kind):
    return lambda **options: kind(RUN, **options)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_adapter_conforms(check):
    assert check(maker(Plain)) == ""


class Doubled(Plain):
    """End-of-text twice (lm_eval 3333)."""

    def pair(self, context, continuation):
        found = super().pair(context, continuation)
        return found._replace(context=[self.eot_token_id, *found.context])


class Missing(Plain):
    """No end-of-text where training had one (lm_eval 1586)."""

    def __init__(self, *given, prefix="none", **named):
        super().__init__(*given, prefix="none" if prefix == "trained" else prefix, **named)


class Unmoved(Plain):
    """White space left on the context, both encoded apart (review of lm_eval 4012)."""

    def pair(self, context, continuation):
        return Pair([self.eot_token_id, *self.tok_encode(context)], self.tok_encode(continuation))


class Crossed(Plain):
    """The continuation is what follows the context's tokens, even if a token spans the join (lm_eval 1053)."""

    def pair(self, context, continuation):
        bare = context.rstrip()
        whole = self.tok_encode(context + continuation)
        before = self.tok_encode(bare)
        return Pair([self.eot_token_id, *before], whole[len(before) :])


class Shifted(Plain):
    """Logits one place late (lighteval 1252)."""

    def likelihoods(self, pairs, bar):
        late = [Pair([*p.context, *p.continuation[:1]], [*p.continuation[1:], 0]) for p in pairs if p.continuation]
        return super().likelihoods(late, bar)


class CutFirst(Plain):
    """The context cut after the continuation's place was counted, so its tokens are scored (mlx-lm 1902)."""

    def fitted(self, pair):
        kept = super().fitted(pair)
        return kept if kept.context == pair.context else Pair(kept.context[:-3], kept.context[-3:] + kept.continuation)


class CutAll(Plain):
    """The continuation cut to the window."""

    def fitted(self, pair):
        kept = super().fitted(pair)
        return kept._replace(continuation=kept.continuation[:LIMIT])


class FirstWindow(Plain):
    """A document cut to the window (lingua 46)."""

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return super().loglikelihood_rolling([request(one.args[-1][:LIMIT]) for one in requests], disable_tqdm)


class Begun(Plain):
    """End-of-text before every window, which the model does not know there (the reverse of lm_eval 2382)."""

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        self.prefix = "window"
        return super().loglikelihood_rolling(requests, disable_tqdm)


class Sorted(Plain):
    """Results in the order in which they were computed."""

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **kwargs):
        ordered = sorted(requests, key=lambda one: len(one[1]) + len(one[2]))
        return super()._loglikelihood_tokens(ordered, disable_tqdm)


class Padded(Plain):
    """Padding that is seen: more of it with more rows at once (lm_eval 704, open-instruct 75)."""

    def likelihoods(self, pairs, bar):
        found = super().likelihoods(pairs, bar)
        return [(total - 0.001 * (self.batch_size or 0), greedy) for total, greedy in found]


class Wide(Plain):
    """The rows that pad the table take part (mirage 751, pythia 65)."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.parts = lambda requests: [(replace(MODEL, vocab=MODEL.padded_vocab), [*range(len(requests))])]


class Stops(Plain):
    """Stops changed by `change` before they are asked for."""

    def generate_until(self, requests, disable_tqdm=False):
        asked = [{**one.args[1], "until": self.change(one.args[1].get("until"), requests)} for one in requests]
        return super().generate_until([request(r.args[0], one) for r, one in zip(requests, asked)], disable_tqdm)


class Letters(Stops):
    """A stop taken for a list of letters (lm_eval 699)."""

    def change(self, until, requests):
        return list(until or "") if isinstance(until, str) else until


class LastStops(Stops):
    """The stops of the last request for all (lm_eval 3587)."""

    def change(self, until, requests):
        return requests[-1].args[1].get("until")


class FirstLetter(Stops):
    """A stop of several tokens taken for its first (lm_eval 630)."""

    def change(self, until, requests):
        return [stop[0] for stop in ([until] if isinstance(until, str) else until or []) if stop]


class OneStop(Stops):
    """Only the first of several stops."""

    def change(self, until, requests):
        return until if isinstance(until, str) else (until or [])[:1]


class Kept(Plain):
    """The text with its prompt."""

    def generate_until(self, requests, disable_tqdm=False):
        return [one.args[0] + text for one, text in zip(requests, super().generate_until(requests, disable_tqdm))]


class Arrays(Plain):
    """Results of NumPy, which sqlite and JSON refuse."""

    def likelihoods(self, pairs, bar):
        return [(np.float32(total), np.bool_(greedy)) for total, greedy in super().likelihoods(pairs, bar)]


FAULTS = [
    (Doubled, conformance.end_of_text),
    (Doubled, conformance.empty),
    (Missing, conformance.end_of_text),
    (Unmoved, conformance.spaces),
    (Unmoved, conformance.joins),
    (Crossed, conformance.joins),
    (Shifted, conformance.joins),
    (CutFirst, conformance.truncation),
    (CutAll, conformance.truncation),
    (FirstWindow, conformance.rolling),
    (Begun, conformance.rolling),
    (Shifted, conformance.rolling),
    (Sorted, conformance.batches),
    (Padded, conformance.batches),
    (Wide, conformance.joins),
    (Letters, conformance.stops),
    (LastStops, conformance.stops),
    (FirstLetter, conformance.stops),
    (OneStop, conformance.stops),
    (Kept, conformance.stops),
    (Arrays, conformance.kinds),
]


@pytest.mark.parametrize("fault, check", FAULTS, ids=lambda one: one.__name__)
def test_a_faulty_adapter_does_not(fault, check):
    assert check(maker(fault)) != ""


def test_every_check_finds_a_fault():
    assert {check for _, check in FAULTS} == set(conformance.CHECKS)


def test_texts_go_to_the_cache_and_come_in_the_order_of_the_requests():
    lm = Plain(RUN, max_length=LIMIT, batch_size=4)
    contexts = ["We", conformance.SENTENCE, conformance.SENTENCE[:20], "The laws of this nation", "We"]
    asked = [request(context, {"max_gen_toks": conformance.NEW, "until": ["x"]}) for context in contexts]
    texts = lm.generate_until(asked, disable_tqdm=True)
    assert texts[0] == texts[4] != texts[1], "of which the longer is generated first"
    told = [("generate_until", one.args, text) for one, text in zip(asked, texts)]
    assert sorted(lm.cache_hook.parts, key=str) == sorted(told, key=str)
