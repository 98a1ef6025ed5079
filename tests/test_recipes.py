"""A recipe file and its overrides: what is taken, and the one line that says why something is not."""

import dataclasses
from pathlib import Path

import pytest

from rove_jax import recipes
from rove_jax.config import Config
from rove_jax.errors import UsageError
from rove_jax.models import accounting
from rove_jax.training import setup

RECIPE = """
from rove_jax.config import Config, Model


def config() -> Config:
    return Config(seed=7, model=Model(window=64))
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    return path


def flat(values: dict, prefix: str = "") -> dict:
    """A nested dict as one level with dotted keys."""
    out = {}
    for key, value in values.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def changed(path: Path, *words: str) -> dict:
    """Which fields differ from the recipe's own after these overrides."""
    before, after = (flat(dataclasses.asdict(recipes.load(path, w))) for w in ((), words))
    assert before.keys() == after.keys()
    return {key: after[key] for key in after if after[key] != before[key]}


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ([], {}),
        (["--training.steps", "50", "--optimizer.peak-lr", "3e-4"], {"training.steps": 50, "optimizer.peak_lr": 3e-4}),
        (["--training.stop_after", "5"], {"training.stop_after": 5}),
        (["--training.stop-after=5"], {"training.stop_after": 5}),
        (["--model.rotary.base", "5000"], {"model.rotary.base": 5000.0}),
        (["--model.window", "None"], {"model.window": None}),
        (["--evaluation.lengths", "128", "256"], {"evaluation.lengths": (128, 256)}),
        (["--evaluation.scalings", "none", "ntk"], {"evaluation.scalings": ("none", "ntk")}),
        (["--evaluation.at-end"], {"evaluation.at_end": True}),
        (["--evaluation.at-end", "--evaluation.no-at-end"], {}),
        (["--mesh.data", "2", "--mesh.fsdp", "-1"], {"mesh.data": 2, "mesh.fsdp": -1}),
        (["--seed", "1", "--seed", "2"], {"seed": 2}),
        (["--evaluation.prompt", "two words"], {"evaluation.prompt": "two words"}),
        (["--evaluation.prompt=--odd"], {"evaluation.prompt": "--odd"}),
    ],
)
def test_overrides_change_what_they_name_and_nothing_else(recipe: Path, words: list[str], want: dict) -> None:
    assert changed(recipe, *words) == want


@pytest.mark.parametrize(
    ("words", "named", "nearest"),
    [
        (["--trainig.steps", "50"], "--trainig.steps", "--training.steps"),
        (["--training.step", "50"], "--training.step", "--training.steps"),
        (["--steps", "50"], "--steps", "--training.steps"),
        (["--training.warmup_steps", "5"], "--training.warmup-steps", "--optimizer.warmup-steps"),
        (["--seed", "1", "--evaluation.no-atend"], "--evaluation.no-atend", "--evaluation.no-at-end"),
        (["--model.variant", "rovee"], "rovee", "did you mean rove?"),
    ],
)
def test_an_unknown_name_is_named_with_the_nearest_right_one(recipe, words, named, nearest, capfd) -> None:
    with pytest.raises(UsageError) as caught:
        recipes.load(recipe, words)
    assert str(caught.value).startswith("--") and named in str(caught.value) and nearest in str(caught.value)
    assert capfd.readouterr() == ("", ""), "one line for the command to print, and no box of tyro's"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--training.steps", "1.5"], "--training.steps 1.5: --training.steps takes an integer"),
        (["--training.steps"], "--training.steps: --training.steps takes an integer"),
        (["--training.steps", "5", "6"], "--training.steps 5 6: --training.steps takes an integer"),
        (["--optimizer.peak-lr", "hot"], "--optimizer.peak-lr hot: --optimizer.peak-lr takes a number"),
        (["--model.window", "x"], "--model.window x: --model.window takes an integer or None"),
        (["--seed", "1", "--model.window", "x"], "--model.window x: --model.window takes an integer or None"),
        (["--training.steps", "0"], "training.steps = 0: must be at least 1"),
        (["--optimizer.peak-lr", "inf"], "optimizer.peak_lr = inf: must be finite"),
        (["--seed", "99999999999999999999"], "seed = 99999999999999999999: must fit into 32 bits"),
        (
            ["--data.source", "files", "--data.path", ""],
            "data.path = '': source files needs the path of a text file or folder",
        ),
        (["--model.kv-heads", "3"], "model.kv_heads = 3: must divide query_heads = 2"),
        (["50"], "50: unexpected argument; overrides look like --training.steps 50"),
    ],
)
def test_a_wrong_value_is_one_line(recipe, words, line, capfd) -> None:
    with pytest.raises(UsageError) as caught:
        recipes.load(recipe, words)
    assert str(caught.value) == line
    assert capfd.readouterr() == ("", "")


def test_a_switch_takes_no_value(recipe: Path) -> None:
    with pytest.raises(UsageError, match="--evaluation.at-end takes no value"):
        recipes.load(recipe, ["--evaluation.at-end", "True"])


def test_every_field_has_a_flag_and_none_is_a_subcommand(recipe: Path, capfd) -> None:
    with pytest.raises(SystemExit) as stop:
        recipes.load(recipe, ["--help"])
    assert stop.value.code == 0
    text = capfd.readouterr().out
    names = {name for name in flat(dataclasses.asdict(Config()))}
    assert {name for name in names if f"--{name.replace('_', '-')}" not in text} == set()
    assert "subcommands" not in text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def config(:\n", "recipe.py:1: invalid syntax"),
        ("x = 1\n", "recipe.py: defines no function config()"),
        ("def config():\n    return 3\n", "recipe.py: config() returned int"),
        ("import no_such_module\n", "recipe.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def half():\n    return 1 / 0\n\ndef config():\n    return half()\n", "recipe.py:2: ZeroDivisionError"),
        (RECIPE.replace("seed", "sede"), "recipe.py:6: Config has no field sede; did you mean seed?"),
        (RECIPE.replace("window", "windw"), "recipe.py:6: Model has no field windw; did you mean window?"),
        (
            "from rove_jax.config import Training\n\ndef config():\n    return Training(steps='50')\n",
            "recipe.py:4: Training.steps = '50': must be int",
        ),
        ("def f(a):\n    return a\n\ndef config():\n    return f(b=1)\n", "recipe.py:5: TypeError: f() got an unexp"),
        ("x = '\0'\n", "recipe.py:1: "),
        (RECIPE.replace("64", "0"), "model.window = 0: must be a whole number, at least 1"),
        (RECIPE.replace("64", "6e1"), "model.window = 60.0: must be a whole number, at least 1"),
    ],
)
def test_a_fault_of_the_file_is_one_line_with_its_place(recipe: Path, text: str, line: str) -> None:
    recipe.write_text(text)
    with pytest.raises(UsageError) as caught:
        recipes.load(recipe)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.py", tmp_path):
        with pytest.raises(UsageError, match=f"{path}: no such recipe"):
            recipes.load(path)


def test_a_recipe_leaves_nothing_behind(recipe: Path) -> None:
    recipes.load(recipe)
    assert [path.name for path in recipe.parent.iterdir()] == ["recipe.py"]


TWINS = ("tiny", "mini", "substring", "addition", "gpt2_small", "gpt2_medium")


@pytest.mark.parametrize("name", TWINS)
def test_twin_recipes_differ_in_one_line(checkout: Path, name: str) -> None:
    paths = [checkout / "configs" / f"{name}_{variant}.py" for variant in ("rove", "rope")]
    rove, rope = (path.read_text().splitlines() for path in paths)
    assert len(rove) == len(rope)
    assert [(a, b) for a, b in zip(rove, rope) if a != b] == [('VARIANT = "rove"', 'VARIANT = "rope"')]
    rove, rope = (flat(dataclasses.asdict(recipes.load(path))) for path in paths)
    assert {key: rope[key] for key in rope if rope[key] != rove[key]} == {"model.variant": "rope"}


def test_every_recipe_loads_and_has_a_plan(checkout: Path) -> None:
    paths = sorted((checkout / "configs").glob("*.py"))
    assert {path.stem.rpartition("_")[0] for path in paths} == set(TWINS)
    for path in paths:
        settings = recipes.load(path)
        assert setup.make(settings).parameter_count > 0
        assert f"--config configs/{path.name} " in path.read_text(), "the docstring has the command"


@pytest.mark.parametrize("name", ["gpt2_small", "gpt2_medium"])
def test_the_papers_recipes_are_one_epoch_of_its_size(checkout: Path, name: str) -> None:
    settings = recipes.load(checkout / "configs" / f"{name}_rove.py")
    layers, width = settings.model.layers, settings.model.width
    assert settings.training.batch_size * settings.data.context_length == 524_288
    assert round(524_288 * settings.training.steps / 1e9, 2) == 10.0
    # Embedding, and a layer's four attention matrices and MLP of four times the width, all with biases and norms.
    by_hand = 50_257 * width + layers * (12 * width**2 + 13 * width) + 2 * width
    assert accounting.parameter_count(settings.model) == by_hand
    assert f"{by_hand / 1e6:.0f}M" in {"gpt2_small": "124M", "gpt2_medium": "354M"}[name]


def test_offload_is_refused_where_there_is_nowhere_to(checkout: Path) -> None:
    settings = recipes.load(checkout / "configs" / "tiny_rove.py", ["--model.remat", "offload"])
    with pytest.raises(UsageError, match="model.remat = offload: a CPU has no other memory"):
        setup.make(settings)
