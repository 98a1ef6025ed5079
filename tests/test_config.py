"""The settings: what is refused and how it is said, and the way to JSON and back."""

import dataclasses
import json

import pytest

from rove_jax.config import (
    Config,
    Data,
    Evaluation,
    Mesh,
    Model,
    Optimizer,
    Rotary,
    Scaling,
    Training,
    fingerprint,
    from_dict,
    to_dict,
)
from rove_jax.errors import UsageError

UNUSUAL = Config(
    seed=3,
    model=Model(
        variant="custom",
        rotary=Rotary(base=500.0, dims=32, scaling=Scaling("yarn", factor=4.0, original_length=128)),
        value_rotary=Rotary(alpha=0.5, pairing="interleaved"),
        window=16,
    ),
    data=Data(source="files", path="a.txt"),
    training=Training(stop_after=5),
    evaluation=Evaluation(lengths=(128, 256), scalings=("none",)),
)


@pytest.mark.parametrize("config", [Config(), UNUSUAL], ids=["defaults", "unusual"])
def test_json_and_back_is_the_same(config: Config) -> None:
    text = json.dumps(to_dict(config))
    assert from_dict(Config, json.loads(text)) == config
    assert hash(from_dict(Config, json.loads(text)).model) == hash(config.model), "a model is a static argument of jit"


def test_fields_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"sede": 1}, "sede: no such field; did you mean seed?"),
        ({"training": {"step": 1}}, "training.step: no such field; did you mean steps?"),
        ({"model": {"rotary": {"bass": 1.0}}}, "model.rotary.bass: no such field; did you mean base?"),
        ({"training": {"steps": "5"}}, "training.steps = '5': must be int"),
        ({"training": {"steps": True}}, "training.steps = True: must be int"),
        ({"training": {"init_from": ""}}, "training.init_from = '': is empty; name a folder of a run, or leave it out"),
        (
            {"training": {"compilation_cache": ""}},
            "training.compilation_cache = '': is empty; name a folder of compiled programs, or leave it out",
        ),
        ({"training": {"join_seconds": 0}}, "training.join_seconds = 0: must be at least 1"),
        ({"data": {"prepared": ""}}, "data.prepared = '': is empty; name a file or folder, or leave it out"),
        ({"data": {"cache": ""}}, "data.cache = '': is empty; name a file or folder, or leave it out"),
        ({"evaluation": {"at_end": 1}}, "evaluation.at_end = 1: must be bool"),
        ({"model": {"window": 1.5}}, "model.window = 1.5: must be int or NoneType"),
        ({"model": 3}, "model = 3: must be an object with the fields of Model"),
    ],
)
def test_json_of_another_shape_is_refused(change: dict, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(Config, change)
    assert str(caught.value) == line


def test_a_whole_number_is_a_legal_float() -> None:
    assert from_dict(Config, {"optimizer": {"peak_lr": 1}}).optimizer.peak_lr == 1.0


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: Model(variant="rovee"),
            "model.variant = 'rovee': must be one of nope, rope, rove, custom, vo, absolute_q",
        ),
        (lambda: Model(attention="flash"), "model.attention = 'flash'"),
        (lambda: Model(query_heads=3, kv_heads=2), "model.kv_heads = 2: must divide query_heads = 3"),
        (lambda: Model(layers=0), "model.layers = 0: must be a whole number, at least 1"),
        (lambda: Model(dropout=1.0), "model.dropout = 1.0"),
        (lambda: Model(window=0), "model.window = 0"),
        (lambda: Model(variant="nope", rotary=Rotary(base=5.0)), "model.rotary: variant nope"),
        (lambda: Model(variant="rove", value_rotary=Rotary(base=5.0)), "model.value_rotary: variant rove"),
        (lambda: Model(head_dim=16, rotary=Rotary(dims=32)), "rotary.dims = 32: exceeds head_dim = 16"),
        (lambda: Model(head_dim=15), "head_dim = 15: is odd"),
        (lambda: Rotary(dims=3), "rotary.dims = 3"),
        (lambda: Rotary(alpha=1.5), "rotary.alpha = 1.5"),
        (lambda: Rotary(pairing="halves"), "rotary.pairing = 'halves'"),
        (lambda: Scaling("yarm"), "scaling.rule = 'yarm': must be one of"),
        (lambda: Scaling("yarn", factor=4.0), "scaling.original_length = None"),
        (lambda: Scaling("linear"), "scaling.factor = None"),
        (lambda: Scaling("none", factor=2.0), "scaling.factor = 2.0: rule 'none' does not read it"),
        (lambda: Scaling("ntk", factor=2.0, beta_fast=3.0), "scaling.beta_fast = 3.0: rule 'ntk' does not read it"),
        (
            lambda: Scaling("yarn", factor=4.0, original_length=2048, maximum_length=4096),
            "scaling.factor = 4.0: conflicts with maximum_length / original_length = 4096 / 2048 = 2",
        ),
        (lambda: Scaling("dynamic_ntk", original_length=128), "scaling.length = None"),
        (lambda: Scaling("yarn", factor=0.5, original_length=128), "scaling.factor = 0.5: must be at least 1"),
        (lambda: Scaling("yarn", factor=2.0, original_length=128, mscale=1.0), "scaling.mscale = 1.0"),
        (lambda: Data(source="files"), "data.path = None"),
        (lambda: Data(source="tfds:"), "data.source = 'tfds:'"),
        (lambda: Data(tokenizer_path="x"), "data.tokenizer_path = 'x'"),
        (lambda: Optimizer(peak_lr=0.0), "optimizer.peak_lr = 0.0"),
        (lambda: Optimizer(beta2=1.0), "optimizer.beta2 = 1.0"),
        (lambda: Training(steps=0), "training.steps = 0"),
        (lambda: Training(batch_size=6, accumulation=4), "training.accumulation = 4: must divide batch_size = 6"),
        (lambda: Training(stop_after=0), "training.stop_after = 0"),
        (lambda: Mesh(data=-1, fsdp=-1), "mesh = (-1, -1, 1): at most one axis may be -1"),
        (lambda: Mesh(tensor=0), "mesh.tensor = 0"),
        (lambda: Evaluation(scalings=("yarm",)), "evaluation.scalings = 'yarm'"),
        (lambda: Evaluation(lengths=(1,)), "evaluation.lengths = 1"),
        (lambda: Evaluation(temperature=-1.0), "evaluation.temperature = -1.0"),
    ],
)
def test_an_illegal_value_is_refused_where_it_is_made(make, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_two_ways_of_saying_a_stretch_agree() -> None:
    assert Scaling("yarn", factor=4.0, original_length=128).stretch == 4.0
    assert Scaling("yarn", original_length=128, maximum_length=512).stretch == 4.0
    assert Scaling("yarn", factor=4.0, original_length=128, maximum_length=512).stretch == 4.0
    assert Scaling().stretch == 1.0


def test_the_variants_turn_what_they_say() -> None:
    spec, other = Rotary(base=500.0), Rotary(base=50.0)
    assert Model(variant="nope").rotations == (None, None)
    assert Model(variant="rope", rotary=spec).rotations == (spec, None)
    assert Model(variant="rove", rotary=spec).rotations == (spec, spec)
    assert Model(variant="custom", rotary=spec, value_rotary=other).rotations == (spec, other)


def test_scaling_chosen_later_reaches_values_too() -> None:
    scaling = Scaling("yarn", factor=4.0, original_length=128)
    for variant in ("rove", "custom"):
        scaled = Model(variant=variant).with_scaling(scaling)
        assert [rotary.scaling for rotary in scaled.rotations if rotary] == [scaling, scaling]
    assert Model(variant="nope").with_scaling(scaling) == Model(variant="nope")


def test_the_fingerprint_follows_the_values_only() -> None:
    assert fingerprint(Config()) == fingerprint(from_dict(Config, to_dict(Config())))
    assert fingerprint(Config(seed=1)) != fingerprint(Config())
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert len(fingerprint(Config())) == 16


def test_an_odd_head_needs_dims_only_where_something_turns() -> None:
    assert Model(head_dim=15, variant="nope").rotations == (None, None)
    for variant in ("rope", "rove"):
        assert Model(head_dim=15, variant=variant, rotary=Rotary(dims=8)).head_dim == 15
        with pytest.raises(UsageError, match="head_dim = 15: is odd"):
            Model(head_dim=15, variant=variant)
    with pytest.raises(UsageError, match="head_dim = 15: is odd"):
        Model(head_dim=15, variant="custom", rotary=Rotary(dims=8))
