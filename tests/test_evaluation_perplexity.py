"""The figures of a perplexity measurement against a float64 oracle that goes token by token."""

import jax
import numpy as np
import pytest
from reference import perplexity as oracle
from reference.weights import random_params

from rove_jax.config import Model
from rove_jax.data.prepared import Document
from rove_jax.errors import RunError
from rove_jax.evaluation import perplexity
from rove_jax.evaluation.protocol import Protocol, Window
from rove_jax.models import functional

CFG = Model(layers=2, width=32, query_heads=2, kv_heads=2, head_dim=16, mlp_width=64, vocab=50, vocab_multiple=64)
EOT, TRAINED = 49, 16
SIZES = np.array([1 + token % 3 for token in range(49)] + [0])


@pytest.fixture(scope="module")
def params():
    return random_params(CFG, seed=2)


@pytest.fixture(scope="module")
def documents():
    draw = np.random.RandomState(3)
    texts = [Document(f"d{place}", draw.randint(0, 49, size=count)) for place, count in enumerate((40, 57, 33))]
    texts[1].tokens[20] = EOT
    return texts


@pytest.fixture(scope="module")
def next_logits(params):
    """Logits after a context, each context in a forward pass of its own, padded to one shape."""

    @jax.jit
    def after(tokens_bt, last):
        hidden = functional.apply(CFG, params, tokens_bt).hidden[:, last]
        return functional.unembed(CFG, params, hidden)[0, : CFG.vocab]

    return lambda context: after(np.pad(context, (0, 64 - len(context))).astype(np.int32)[None], len(context) - 1)


def measured(params, documents, protocol: Protocol) -> list[dict]:
    return perplexity.perplexities(
        CFG, params, documents, protocol, training_length=TRAINED, eot=EOT, token_bytes=SIZES
    )


@pytest.mark.parametrize(
    ("mode", "prefix", "stride"),
    [
        ("first_n", "document", None),
        ("nonoverlap", "none", None),
        ("sliding", "document", 10),
        ("sliding", "window", 10),
    ],
)
def test_figures_equal_the_oracle(params, documents, next_logits, mode, prefix, stride):
    length = 16 if mode == "same_text" else 32
    protocol = Protocol((length, 32) if mode == "same_text" else (length,), mode=mode, prefix=prefix, stride=stride)
    found = measured(params, documents, protocol)[0]
    step = stride or length
    texts = [list(d.tokens)[: 32 if mode == "same_text" else None] for d in documents]
    scored = [oracle.token_nlls(next_logits, text, length, mode, step, prefix, EOT) for text in texts]
    flat = [item for part in scored for item in part]
    np.testing.assert_allclose(found["perplexity"], oracle.perplexity([nats for *_, nats in flat]), rtol=1e-5)
    assert found["tokens"] == len(flat)
    assert [d["tokens"] for d in found["documents"]] == [len(part) for part in scored]
    np.testing.assert_allclose(
        [d["nll"] for d in found["documents"]], [sum(n for *_, n in part) for part in scored], rtol=1e-5
    )
    sizes = dict(enumerate(SIZES.tolist()))
    np.testing.assert_allclose(found["bits_per_byte"], oracle.bits_per_byte(flat, sizes), rtol=1e-5)
    assert found["bytes"] == sum(sizes[target] for target, *_ in flat)
    late = [nats for _, place, nats in flat if place >= length - length // 2]
    np.testing.assert_allclose(found["last"]["perplexity"], oracle.perplexity(late), rtol=1e-5)
    for part in found["positions"]:
        inside = [nats for _, place, nats in flat if part["from"] <= place < part["to"]]
        assert part["tokens"] == len(inside)
        np.testing.assert_allclose(part["nll"], np.mean(inside), rtol=1e-5)
    assert sum(part["tokens"] for part in found["positions"]) == found["tokens"]
    # A new window begins where the first token of the context moves.
    groups: dict[tuple[int, int], list[float]] = {}
    for number, part in enumerate(scored):
        for place, (*_, nats) in enumerate(part):
            groups.setdefault((number, oracle.first_token(place, length, mode, step)), []).append(nats)
    np.testing.assert_allclose(found["perplexity_by_window"], oracle.mean_of_means(list(groups.values())), rtol=1e-5)
    assert found["windows"] == len(groups)


def test_scalings_are_recorded_and_cost_nothing_in_range(params, documents):
    protocol = Protocol((8, 16, 32), ("none", "yarn"), mode="first_n")
    progress: list[int] = []
    found = perplexity.perplexities(
        CFG, params, documents, protocol, training_length=TRAINED, eot=EOT, token_bytes=SIZES, advance=progress.append
    )
    by_key = {(r["length"], r["scaling"]): r for r in found}
    assert by_key[32, "yarn"]["factor"] == 2.0
    np.testing.assert_allclose(by_key[32, "yarn"]["logit_scale"], (0.1 * np.log(2) + 1) ** 2, rtol=1e-12)
    assert by_key[32, "yarn"]["nll"] != by_key[32, "none"]["nll"]
    for length in (8, 16):
        none, yarn = ({**by_key[length, rule], "scaling": ""} for rule in ("none", "yarn"))
        assert none == yarn and none["factor"] == none["logit_scale"] == 1.0
    count = perplexity.window_count(CFG, documents, protocol, training_length=TRAINED, eot=EOT)
    assert sum(progress) == count == 4 * len(documents), "8 and 16 once, 32 twice"


def test_bins_have_the_training_length_as_an_edge():
    assert perplexity.position_edges(2048, 128).tolist() == [0, 32, 64, 128, 256, 512, 1024, 2048]
    assert perplexity.position_edges(100, 128).tolist() == [0, 32, 64, 100]
    assert perplexity.position_edges(3, 1).tolist() == [0, 1, 2, 3]


def test_a_likelihood_that_is_not_finite_stops():
    part = (Window(0, 2, 2), np.array([0, 1, 2]), np.array([1.0, np.nan]))
    with pytest.raises(RunError, match="document d7: .*non-finite.* length 2"):
        perplexity.measure([[part]], ["d7"], 2, 2, SIZES)
