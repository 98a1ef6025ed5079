"""Every command in the documents is one that the project has, and every link leads somewhere."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rove_jax import recipes

ROOT = Path(__file__).resolve().parent.parent


def commands(text: str) -> list[list[str]]:
    """The words of each command in the ```bash blocks of a Markdown text, comments left out."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "&&" in words:
                found.append(words[: words.index("&&")])
                words = words[words.index("&&") + 1 :]
            found.append(words)
    return [words for words in found if words]


FOLDERS = (".", "train", "eval", "configs", "notebooks")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))
COMMANDS = [words for path in DOCUMENTS for words in commands(path.read_text())]


class UnderstoodError(Exception):
    """Raised in place of the first work of a command that does not separate its arguments from its work."""


def understood(*_, **__) -> None:
    raise UnderstoodError


def check(words: list[str]) -> None:
    """Raise unless `words` is a command that the project understands."""
    match words:
        case ["python", "-m", ("train" | "eval") as name, *rest] if (ROOT / name / "__main__.py").is_file():
            check([f"rove-{name}", *rest])
        case ["rove-train", "plan", *rest]:
            from rove_jax.cli import plan

            arguments, overrides = plan.parser().parse_known_args(rest)
            recipes.load(ROOT / arguments.config, overrides)
        case ["rove-train", "verify", *rest]:
            from rove_jax.cli import verify

            verify.parser().parse_args(rest)
        case ["rove-train", *rest]:
            from rove_jax.cli import train

            arguments, overrides = train.parser().parse_known_args(rest)
            recipes.load(ROOT / arguments.config, overrides)
        case ["rove-eval", *rest]:
            from rove_jax.cli import eval

            eval.parser().parse_args(rest)
        case ["rove-prepare", *rest]:
            from rove_jax.cli import prepare
            from rove_jax.data import sources

            with pytest.MonkeyPatch.context() as patch, pytest.raises(UnderstoodError):
                patch.chdir(ROOT)
                patch.setattr(sources, "load", understood)
                prepare.prepare(rest)
        case ["pip", "install", "-e", place]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert re.fullmatch(r"\.\[(\w+)\]", place).group(1) in extras
        case ["pip", "install", "nbclient", "ipykernel"]:
            dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
            assert {"nbclient", "ipykernel"} <= {need.split(">")[0] for need in dev}
        case [size, "jupyter", "execute", book, "--output", _] if size.startswith("ROVE_NOTEBOOK_SIZE="):
            assert size.split("=")[1] in ("full", "short", "tiny") and (ROOT / book).is_file() and ".ipynb" in book
        case ["bash", ".ci/run"]:
            assert (ROOT / ".ci" / "run").is_file()
        case ["pytest"] | ["pytest", "-m", "not slow"] | ["pre-commit", "install"]:
            pass
        case _:
            raise AssertionError(f"not a command of the project: {shlex.join(words)}")


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_a_documented_command_is_understood(words: list[str]) -> None:
    check(words)


@pytest.mark.parametrize(
    "line",
    [
        "python -m train --config configs/tiny_rove.py --workdir x --training.stps 5",
        "python -m train --confg configs/tiny_rove.py --workdir x",
        "python -m train --config configs/no_such_recipe.py --workdir x",
        "python -m eval perplexity --workdir x --lenths 128",
        "python -m evaluate perplexity --workdir x",
        "rove-prepare --out x --data.tokenisr gpt2",
        'pip install -e ".[txt]"',
        "ROVE_NOTEBOOK_SIZE=shrt jupyter execute notebooks/01_quickstart.ipynb --output x",
        "ROVE_NOTEBOOK_SIZE=short jupyter execute notebooks/1_quickstart.ipynb --output x",
    ],
)
def test_the_check_sees_a_wrong_command(line: str) -> None:
    with pytest.raises((ValueError, AssertionError)):
        check(shlex.split(line))


def test_links_between_documents_lead_somewhere() -> None:
    links = [
        (path, target) for path in DOCUMENTS for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    ]
    assert links and [(path.name, target) for path, target in links if not (path.parent / target).exists()] == []


def test_the_two_first_commands_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    assert 'pip install -e ".[text]" && python -m train --config configs/tiny_rove.py --workdir runs/tiny_rove' in text
    assert 'pip install -e ".[dev]" && pytest' in text
    assert len(COMMANDS) > 15


def test_the_python_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    import rove_jax
    from rove_jax.models import functional, presets
    from rove_jax.zoo import Loaded

    text = (ROOT / "README.md").read_text()
    layers, cached, trained = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(layers, names)
    assert names["y"].shape == names["x"].shape == (2, 128, 256)
    exec(cached, names)
    assert names["cache"].rotary.scaling.rule == "yarn" and names["cache"].length == 104

    settings = rove_jax.Config(model=presets.preset("tiny"))
    loaded = Loaded(settings, functional.init(settings.model, jax.random.key(0)), 0, {})
    monkeypatch.setattr("rove_jax.zoo.load_model", lambda folder: loaded)
    exec(trained, names)
    assert names["logits"].shape == (1, 20, settings.model.padded_vocab)


def test_the_layout_is_the_one_that_the_tests_enforce() -> None:
    from tests.test_structure import ORDER

    text = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"^```\n(errors.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block.replace("->", " ").split() == ORDER


def test_the_table_of_backends_is_what_the_resolver_says():
    from rove_jax.attention import table

    begin, end = "<!-- python -m rove_jax.attention.table -->\n", "\n<!-- end of table -->"
    shown = (ROOT / "README.md").read_text().split(begin)[1].split(end)[0]
    assert shown == table.markdown(), "python -m rove_jax.attention.table prints the new one"
