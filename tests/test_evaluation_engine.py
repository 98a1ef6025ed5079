"""Scores of requests: against the oracle, and the same under any batching, order, packing and number of devices."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from reference import perplexity as oracle
from reference.weights import random_params

from rove_jax import config, sharding
from rove_jax.config import Model, Scaling
from rove_jax.errors import UsageError
from rove_jax.evaluation import overlong, packing, scorer
from rove_jax.evaluation.engine import TOKENS_PER_BATCH, Engine, Request, Score
from rove_jax.models import functional

CFG = Model(layers=2, width=32, query_heads=2, kv_heads=1, head_dim=16, mlp_width=64, vocab=50, vocab_multiple=64)
ROVE = replace(CFG, variant="rove")


@pytest.fixture(scope="module")
def params():
    return random_params(ROVE, seed=2)


@pytest.fixture(scope="module")
def one():
    return sharding.make_mesh(config.Mesh(data=1))


@pytest.fixture(autouse=True)
def small_rows(monkeypatch):
    monkeypatch.setattr(packing, "ROW", 128)
    monkeypatch.setitem(TOKENS_PER_BATCH, "cpu", 256)


def requests(seed: int = 0) -> list[Request]:
    """Questions with choices that begin alike, two equal choices, one that another begins with; and single ones."""
    draw = np.random.RandomState(seed)

    def text(fewest: int, most: int) -> np.ndarray:
        return draw.randint(0, CFG.vocab, draw.randint(fewest, most + 1)).astype(np.int32)

    made = []
    for _ in range(5):
        context, start = text(20, 40), text(1, 2)
        made += [Request(context, np.concatenate([start, text(1, 5)])) for _ in range(draw.randint(2, 5))]
        made += [Request(text(1, 40), text(1, 9))]
    made += [made[0], Request(context, start), Request(context, start), Request(text(140, 140), text(3, 3))]
    return made


@pytest.fixture(scope="module")
def expected(params):
    """Each request in a forward pass of its own, all logits, in float64 from there on."""

    @jax.jit
    def logits(tokens_bt):
        return functional.unembed(ROVE, params, functional.apply(ROVE, params, tokens_bt).hidden)[..., : ROVE.vocab]

    found = []
    for context, continuation in requests():
        row = np.concatenate([context, continuation])
        logits_tv = np.asarray(logits(np.pad(row, (0, 192 - len(row)))[None]))[0, len(context) - 1 : len(row) - 1]
        nlls = [oracle.negative_log_likelihood(*pair) for pair in zip(logits_tv, continuation)]
        found.append((np.array(nlls), logits_tv.argmax(axis=1) == continuation))
    return found


def check(scores: list[Score], expected) -> None:
    for score, (nlls, greedy) in zip(scores, expected, strict=True):
        assert score.nlls.dtype == np.float32 and score.greedy.dtype == bool
        np.testing.assert_allclose(score.nlls, nlls, atol=2e-5)
        np.testing.assert_array_equal(score.greedy, greedy)


def test_scores_equal_the_oracle_on_all_devices(params, expected):
    assert np.ptp(np.concatenate([nlls for nlls, _ in expected])) > 2, "the weights predict something"
    assert 0 < sum(greedy.sum() for _, greedy in expected) < 20
    forest = packing.trees(requests())
    assert max(len(tree.branches) for tree in forest) >= 3 and not forest[-1].branches
    progress: list[int] = []
    engine = Engine(ROVE, params)
    assert engine.mesh.size == 8 and engine.own() is engine
    scorer.read.clear_cache()
    check(engine.score(requests(), progress.append), expected)
    assert sum(progress) == len(requests())
    assert scorer.read._cache_size() == 2, "rows, and longer ones"


def test_few_programs_serve_requests_of_all_lengths(params, one, expected, monkeypatch):
    traces: list[tuple] = []
    apply = functional.apply

    def traced(*given, **named):
        traces.append(given[2].shape)
        return apply(*given, **named)

    monkeypatch.setattr(functional, "apply", traced)
    for program in (scorer.read, scorer.likelihoods):
        program.clear_cache()
    engine = Engine(ROVE, params, mesh=one)
    check(engine.score(requests()), expected)
    for seed in (1, 2):
        engine.score(requests(seed))
    assert sorted(traces) == [(1, 144), (2, 128)], "a long row, and the others"
    assert scorer.likelihoods._cache_size() == 2


def test_order_batch_size_and_sharing_do_not_matter(params, one, expected, monkeypatch):
    order = np.random.RandomState(1).permutation(len(expected))
    shuffled = Engine(ROVE, params, batch_size=3, mesh=one).score([requests()[place] for place in order])
    check(shuffled, [expected[place] for place in order])
    padded = Engine(ROVE, params, mesh=one).score(requests(), length=192)
    check(padded, expected)
    # Control: branches that see each other are off by far more than the tolerance.
    put = packing.Row.put

    def together(row: packing.Row, tokens: np.ndarray, spans: list, position: int = 0, prefix: int = 0) -> None:
        put(row, tokens, spans, position, prefix)
        if prefix:
            row.segments[-1][:] = prefix

    monkeypatch.setattr(packing.Row, "put", together)
    with pytest.raises(AssertionError):
        check(Engine(ROVE, params, mesh=one).score(requests()), expected)


def test_a_prefix_is_read_once(params):
    forest = packing.trees(requests())
    read = sum(len(tree.prefix) + sum(len(branch.tokens) for branch in tree.branches) for tree in forest)
    alone = sum(len(r.context) + len(r.continuation) - 1 for r in requests())
    assert read < 0.7 * alone
    spans = [span for tree in forest for part in (tree, *tree.branches) for span in part.spans]
    assert sum(span.count for span in spans) == sum(len(r.continuation) for r in requests())
    rows = packing.rows(forest)
    assert sum(row.size for row in rows) == sum(tree.size for tree in forest) == read
    assert all(row.size <= row.length for row in rows)


@pytest.mark.parametrize(("header", "choices", "trees"), [(1, 2, 6), (30, 2, 1), (30, 4, 6), (80, 4, 1)])
def test_questions_become_one_tree_where_fewer_tokens_are_read_so(header, choices, trees):
    """Joined, all choices repeat their question of 18 tokens; apart, all questions repeat what they begin with."""
    contexts = [np.r_[np.zeros(header, int), number * 20 + np.arange(1, 19)] for number in range(6)]
    forest = packing.trees([Request(context, np.array([c, 9])) for context in contexts for c in range(choices)])
    assert len(forest) == trees
    joined, apart = header + 6 * choices * (18 + 1), 6 * (header + 18 + choices)
    assert sum(tree.size for tree in forest) == min(joined, apart)


def test_a_window_of_attention_reaches_no_further_in_a_shared_row(params, one):
    windowed = replace(ROVE, window=7)
    mine = requests()[:6]
    alone = [Engine(windowed, params, mesh=one).score([r], length=64)[0] for r in mine]
    for found, wanted in zip(Engine(windowed, params, mesh=one).score(mine), alone):
        np.testing.assert_allclose(found.nlls, wanted.nlls, atol=2e-5)


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary(params, one):
    """The table is padded to 64 rows; a padded row in the sum would give ln 64. Of equal logits the first is greedy."""
    nothing = jax.tree.map(np.zeros_like, params)
    [score] = Engine(ROVE, nothing, mesh=one).score([Request(np.array([3]), np.arange(20))], length=32)
    np.testing.assert_allclose(score.nlls, np.full(20, np.log(CFG.vocab)), rtol=1e-6)
    assert score.greedy.tolist() == [True] + 19 * [False]


def test_long_contexts_never_hold_all_logits():
    cfg = replace(CFG, vocab=50_257)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((1, 8192, 32), "float32"), ((1, 8192), "int32"))]
    shapes += [shapes[1], jax.ShapeDtypeStruct((), "int32")]
    compiled = scorer.likelihoods.lower(cfg, functional.abstract(cfg), *shapes).compile()
    memory = compiled.memory_analysis()
    assert memory is not None and memory.temp_size_in_bytes < 4 * 8192 * cfg.padded_vocab / 10


def test_overlong_requests_are_cut_read_on_or_read_scaled(params, one):
    mine = requests()
    sizes = [sum(map(len, r)) for r in mine]
    limit = 24
    parts, removed = overlong.fit(ROVE, mine, "truncate", training_length=limit)
    assert removed == [max(0, size - limit) for size in sizes] and max(removed) > 100
    for old, new in zip(mine, parts[0].requests):
        assert old.context.tolist()[-len(new.context) :] == new.context.tolist()
        assert new.continuation is old.continuation
    long = Request(np.arange(5), np.arange(40))
    assert overlong.cut(long, limit).context.tolist() == [4], "a continuation is never cut"

    parts, removed = overlong.fit(ROVE, mine, "extrapolate", training_length=limit)
    assert [part.model for part in parts] == [ROVE] and sum(removed) == 0
    parts, removed = overlong.fit(ROVE, mine, "yarn", training_length=limit)
    factors = [part.model.rotary.scaling.factor or 1 for part in parts]
    for factor, part in zip(factors, parts):
        for place in part.places:
            read = sizes[place] - 1  # the last token is only predicted
            assert read <= factor * limit and (factor == 1 or read > factor * limit / 2)
    full, more = (Request(np.arange(5), np.arange(count)) for count in (limit - 4, limit - 3))
    assert [part.model == ROVE for part in overlong.fit(ROVE, [full, more], "yarn", training_length=limit)[0]] == [1, 0]
    assert sorted(factors) == [1, 2, 8] and sum(removed) == 0
    assert sorted(place for part in parts for place in part.places) == list(range(len(mine)))
    [whole] = overlong.fit(ROVE, mine, "yarn", training_length=limit, length=36)[0]
    assert whole.model.rotary.scaling == Scaling("yarn", factor=1.5, original_length=limit)
    # Scores come back in the order of the requests, each by its own model.
    few = [mine[-1], mine[0]]
    found, _ = overlong.score(ROVE, params, few, "yarn", training_length=limit, mesh=one)
    for score, place in zip(found, (len(mine) - 1, 0)):
        model = next(part.model for part in parts if place in part.places)
        [alone] = Engine(model, params, mesh=one).score([mine[place]])
        np.testing.assert_allclose(score.nlls, alone.nlls, atol=2e-5)


def test_a_batch_size_of_nothing_is_refused(params):
    with pytest.raises(UsageError, match="batch_size = 0"):
        Engine(ROVE, params, batch_size=0)
