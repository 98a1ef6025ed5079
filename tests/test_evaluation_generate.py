"""Sampling: against full forward passes, alone and in batches, and never outside the vocabulary."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.weights import random_params

from rove_jax.config import Model, Scaling
from rove_jax.errors import UsageError
from rove_jax.evaluation import generate as generation
from rove_jax.evaluation.engine import Engine
from rove_jax.evaluation.generate import Sampling, generate, generate_everywhere, restrict
from rove_jax.models import functional

CFG = Model(layers=2, width=32, query_heads=2, kv_heads=1, head_dim=16, mlp_width=64, vocab=50, vocab_multiple=64)
GREEDY = Sampling(temperature=0.0)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8], [9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2]]
EOT = 49


@pytest.fixture(scope="module")
def params():
    return random_params(CFG, seed=4)


def likeliest(cfg, params):
    """The likeliest next token by a full forward pass over a padded context."""

    @jax.jit
    def after(tokens_bt, last):
        hidden = functional.apply(cfg, params, tokens_bt).hidden[:, last]
        return functional.unembed(cfg, params, hidden)[0].argmax()

    return lambda tokens: int(after(np.pad(tokens, (0, 96 - len(tokens))).astype(np.int32)[None], len(tokens) - 1))


@pytest.mark.parametrize(
    "cfg",
    [
        CFG,
        pytest.param(replace(CFG, window=5), marks=pytest.mark.slow),
        pytest.param(CFG.with_scaling(Scaling("yarn", factor=8.0, original_length=8)), marks=pytest.mark.slow),
    ],
    ids=["plain", "window", "yarn"],
)
def test_greedy_decoding_equals_full_forward_passes(params, cfg, monkeypatch):
    slots, init_cache = [], functional.init_cache

    def noted(*given, **named):
        cache = init_cache(*given, **named)
        slots.append(cache.key.shape[2])
        return cache

    monkeypatch.setattr(functional, "init_cache", noted)
    [found] = generate(cfg, params, PROMPTS[:1], max_new_tokens=60, eot=EOT, sampling=GREEDY)
    text, following = list(PROMPTS[0]), likeliest(cfg, params)
    for token in found:
        assert token == following(text)
        text.append(int(token))
    assert len(found) == 60 and len(set(found.tolist())) > 3, "the model says more than one thing"
    assert slots == [128 if cfg.window is None else 5 - 1 + 32], "with a window, a ring"


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, top_k=20, top_p=0.95)])
def test_a_prompt_gives_the_same_ids_alone_and_beside_others(params, sampling):
    given = {"max_new_tokens": 12, "eot": EOT, "sampling": sampling, "seeds": [7, 8, 9]}
    if sampling == GREEDY:  # on eight devices
        together = generate_everywhere(Engine(CFG, params), PROMPTS, **given)
    else:
        together = generate(CFG, params, PROMPTS, **given)
    for prompt, seed, found in zip(PROMPTS, (7, 8, 9), together):
        [alone] = generate(CFG, params, [prompt], max_new_tokens=12, eot=EOT, sampling=sampling, seeds=[seed])
        np.testing.assert_array_equal(found, alone)
    assert len({tuple(found) for found in together}) == 3


def test_one_trace_serves_all_steps_and_prompts_of_a_bucket(params, monkeypatch):
    apply, traces = functional.apply, []
    monkeypatch.setattr(
        functional, "apply", lambda *given, **named: traces.append(given[2].shape) or apply(*given, **named)
    )
    for prompt, new in ((PROMPTS[0], 20), (PROMPTS[2], 25)):
        generate(CFG, params, [prompt], max_new_tokens=new, eot=EOT, sampling=Sampling(temperature=0.123))
    assert traces == [(1, 32), (1, 1)]


def test_rows_that_pad_the_vocabulary_are_never_drawn():
    cfg = replace(CFG, vocab=5)
    hidden_bd = np.zeros((256, cfg.width), np.float32)
    keys_b = jax.vmap(jax.random.key)(np.arange(256, dtype=np.uint32))

    def drawn(model: Model) -> set[int]:
        tokens_b = generation.draw(model, Sampling(1e32), random_params(model, 0), hidden_bd, np.full(256, 3), keys_b)
        return set(np.asarray(tokens_b).tolist())

    assert drawn(cfg) == {0, 1, 2, 3, 4}
    assert max(drawn(replace(cfg, vocab=64))) > 40, "control: rows of the table that exist are drawn"


def test_generation_stops_at_end_of_text(params):
    [whole] = generate(CFG, params, PROMPTS[:1], max_new_tokens=12, eot=EOT, sampling=GREEDY)
    stop = next(place for place in range(1, 12) if whole[place] not in whole[:place])
    steps: list[np.ndarray] = []
    ended, other = generate(
        CFG, params, PROMPTS[:2], max_new_tokens=12, eot=int(whole[stop]), sampling=GREEDY, emit=steps.append
    )
    np.testing.assert_array_equal(ended, whole[:stop])
    assert all(step[0] == whole[stop] for step in steps[stop:]), "an ended row stays ended"
    assert len(steps) == 12 or len(other) < 12
    [alone] = generate(CFG, params, PROMPTS[:1], max_new_tokens=12, eot=int(whole[0]), sampling=GREEDY)
    assert len(alone) == 0
    steps.clear()
    [cut] = generate(
        CFG,
        params,
        PROMPTS[:1],
        max_new_tokens=12,
        eot=EOT,
        sampling=GREEDY,
        emit=lambda tokens_b: steps.append(tokens_b) or len(steps) == 3,
    )
    assert cut.tolist() == whole[:3].tolist() and len(steps) == 3, "who looks on has seen enough"


def test_an_empty_prompt_continues_end_of_text(params):
    empty, same = generate(CFG, params, [[], [EOT]], max_new_tokens=8, eot=EOT, sampling=GREEDY)
    np.testing.assert_array_equal(empty, same)
    assert len(empty)


def test_top_k_and_top_p_leave_the_likeliest():
    probabilities = np.array([[0.05, 0.4, 0.25, 0.3]])
    logits = jnp.log(probabilities)

    def kept(**fields) -> list[int]:
        return np.flatnonzero(np.isfinite(restrict(logits, Sampling(1.0, **fields))[0])).tolist()

    assert kept() == [0, 1, 2, 3]
    assert kept(top_k=2) == [1, 3]
    assert kept(top_k=9) == [0, 1, 2, 3]
    assert kept(top_p=0.35) == [1]
    assert kept(top_p=0.6) == [1, 3]
    assert kept(top_p=0.75) == [1, 2, 3]
    assert kept(top_k=3, top_p=0.7) == [1, 3], "0.4 / 0.95 + 0.3 / 0.95 reach 0.7; of all four they would too, just"
    np.testing.assert_allclose(
        jax.nn.softmax(restrict(logits, Sampling(0.5))), probabilities**2 / (probabilities**2).sum(), rtol=1e-5
    )
    for temperature in (1e-30, 1e-45, 1e-60):  # the last two are 0 in float32
        assert not np.isnan(restrict(1e30 * logits, Sampling(temperature))).any()


@pytest.mark.parametrize(
    ("prompts", "fields", "message"),
    [
        ([[1, 50]], {}, "token 50 is unknown, the model's vocabulary is 0 to 49"),
        ([[-1]], {}, "token -1 is unknown"),
        ([], {}, "prompts = .*give at least one"),
        ([[1]], {"seeds": [1, 2]}, "there are 1 prompts"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens = 0"),
    ],
)
def test_what_cannot_be_continued_is_refused(params, prompts, fields, message):
    with pytest.raises(UsageError, match=message):
        generate(CFG, params, prompts, **{"max_new_tokens": 4, "eot": EOT, **fields})


@pytest.mark.parametrize("fields", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_wrong_sampling_is_refused(fields):
    with pytest.raises(UsageError, match=next(iter(fields))):
        Sampling(**fields)
