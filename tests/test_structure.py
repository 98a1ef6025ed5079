"""The shape of the code: which way imports point, how long a file may get, and what an import may do."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORDER: list[str] = (
    "errors config storage recipes scaling rotary distributed sharding attention models losses data training zoo "
    "evaluation analysis planning report cli"
).split()
"""A module imports from its own part and from those to the left."""

NAMELESS = {"utils", "common", "helpers", "misc", "base"}
LONGEST = 300


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


def name_of(path: Path) -> str:
    """`rove_jax/attention/dense.py` as `rove_jax.attention.dense`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


LIBRARY = sources("rove_jax")
MODULES = {name_of(path) for path in LIBRARY}
EVERYTHING = sources("rove_jax", "train", "eval", "configs", "notebooks", "tests")


def imported(source: str) -> Iterator[str]:
    """Every module of the project that the text `source` imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("rove_jax"))
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "rove_jax.(relative)"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rove_jax":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES or node.module == "rove_jax" else str(node.module)


def upward(module: str, source: str) -> list[str]:
    """What `module` imports against the order, and parts that the order does not know."""
    part = module.split(".")[1]
    wrong = []
    for target in imported(source):
        other = (target.split(".") + [""])[1]
        if other in ("", "__version__"):
            continue
        if other not in ORDER or ORDER.index(other) > ORDER.index(part):
            wrong.append(f"{module} imports {target}")
    return wrong


@pytest.mark.parametrize(
    "path", [p for p in LIBRARY if p.parent != ROOT / "rove_jax" or p.stem != "__init__"], ids=name_of
)
def test_imports_point_one_way(path: Path) -> None:
    source = path.read_text()
    assert upward(name_of(path), source) == []
    assert "TYPE_CHECKING" not in source, "an import for the type checker alone is still an import"


@pytest.mark.parametrize(
    "source",
    [
        "from rove_jax.cli import exits",
        "from rove_jax import cli",
        "import rove_jax.cli.exits",
        "def late():\n    from rove_jax.cli.exits import run",
        "from ..cli import exits",
        "if TYPE_CHECKING:\n    from rove_jax.cli import exits",
        "from rove_jax.nowhere import x",
    ],
)
def test_the_direction_test_sees_a_wrong_import(source: str) -> None:
    assert upward("rove_jax.models.gpt", source)
    assert not upward(
        "rove_jax.models.gpt", "from rove_jax.rotary import rotate\nimport jax\nfrom rove_jax import config"
    )


def circles(edges: dict[str, set[str]]) -> set[str]:
    """The modules on a circle of imports, or between two: those left when ends are taken away, from either side."""
    left = set(edges)
    while True:
        ends = {name for name in left if not edges[name] & left or not any(name in edges[other] for other in left)}
        if not ends:
            return left
        left -= ends


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}
    assert circles({name_of(path): set(imported(path.read_text())) & MODULES for path in LIBRARY}) == set()


def complaints(path: Path, source: str) -> list[str]:
    """What is wrong with a file of any kind."""
    lines = len(source.splitlines())
    found = [f"{lines} lines: it has more than one reason to change"] if lines > LONGEST else []
    return found + [f"{name} says nothing" for name in sorted(NAMELESS & set(path.with_suffix("").parts))]


def undocumented(source: str) -> list[str]:
    """Public names of a module, the module itself as "", that have no docstring."""
    tree = ast.parse(source)
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    return ([] if ast.get_docstring(tree) else [""]) + [n.name for n in public if not ast.get_docstring(n)]


def acts(source: str) -> list[str]:
    """Statements of a module that do something when it is imported, besides defining names and their derivatives."""
    kinds = ast.For | ast.While | ast.With | ast.Try | ast.Delete | ast.Global
    found = []
    for node in ast.parse(source).body:
        call = node.value if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant) else None
        derivative = isinstance(call, ast.Call) and ast.unparse(call.func).endswith((".defvjp", ".defjvp"))
        if isinstance(node, kinds) or (call and not derivative):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_a_file_is_short_and_its_name_says_something(path: Path) -> None:
    assert complaints(path.relative_to(ROOT), path.read_text()) == []


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_a_module_is_documented_and_does_nothing_at_import(path: Path) -> None:
    assert undocumented(path.read_text()) == []
    assert acts(path.read_text()) == []


def test_these_checks_see_what_they_look_for() -> None:
    assert complaints(Path("rove_jax/utils.py"), "") == ["utils says nothing"]
    assert complaints(Path("rove_jax/common/x.py"), "x = 1\n" * 301) != complaints(Path("rove_jax/common/x.py"), "")
    assert undocumented("def f():\n    return 1\n\ndef _g():\n    return 2\n") == ["", "f"]
    assert undocumented('"""Module."""\nclass A:\n    """Class."""\n') == []
    assert len(acts('"""Doc."""\nX = 1\nprint(X)\nf.defvjp(X, X)\nfor x in []:\n    pass\n')) == 2


def python(program: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_and_its_config_are_light() -> None:
    program = "import sys, {}; print(sorted({{'jax', 'numpy', 'flax', 'tyro', 'optax'}} & set(sys.modules)))"
    for module in ("rove_jax", "rove_jax.config", "rove_jax.recipes", "rove_jax.cli.exits"):
        assert python(program.format(module)).strip() == "[]", module
    assert python(program.format("rove_jax.rotary")).strip() != "[]", "the check itself sees nothing"


def test_importing_everything_touches_no_device_and_no_logging() -> None:
    program = """
import importlib, logging, os, sys
import jax, flax.nnx, grain, optax, orbax.checkpoint, tensorflow_datasets
before = dict(os.environ), list(logging.root.handlers), logging.root.level
for name in sys.argv[1:]:
    importlib.import_module(name)
assert (dict(os.environ), list(logging.root.handlers), logging.root.level) == before
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a device was asked for at import"
jax.devices()
assert xla_bridge.backends_are_initialized(), "the check itself sees nothing"
"""
    python(program, *(name_of(path) for path in LIBRARY if path.stem != "__main__"))


def test_every_exposed_name_exists() -> None:
    import rove_jax

    assert set(rove_jax.__all__) <= set(dir(rove_jax))
    for name in rove_jax.__all__:
        assert getattr(rove_jax, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rotary_atention'"):
        getattr(rove_jax, "rotary_atention")  # noqa: B009, as a person would type it


def test_nothing_names_a_machine() -> None:
    home = re.compile(r"/(?:home|root|Users|work)/\w")
    assert home.search("/home" + "/someone"), "the check itself sees nothing"
    folders = (ROOT / "configs", ROOT / "notebooks")
    texts = [
        *EVERYTHING,
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        *(path for one in folders for path in one.glob("*")),
    ]
    texts.append(ROOT / ".ci" / "run")
    assert [str(path) for path in texts if path.is_file() and home.search(path.read_text())] == []
