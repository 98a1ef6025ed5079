"""The built wheel, used away from the source tree, as someone who installed it would."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(__file__).resolve().parent.parent
    out = tmp_path_factory.mktemp("wheel")
    # setuptools leaves its intermediate files in the source folder, so it is given a copy.
    source = out / "source"
    files = ["pyproject.toml", "README.md", "LICENSE", "rove_jax", "train", "eval", "configs", "tests"]
    source.mkdir()
    subprocess.run(["cp", "-r", *(str(root / name) for name in files), str(source)], check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


def test_only_the_library_is_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rove_jax"}
    source = Path(__file__).resolve().parent.parent / "rove_jax"
    library = {str(path.relative_to(source.parent)) for path in source.rglob("*.py")}
    assert library == {name for name in names if name.endswith(".py")}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_commands_work_away_from_the_source(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    recipe = tmp_path / "recipe.py"
    recipe.write_text((checkout / "configs" / "tiny_rove.py").read_text())
    away = tmp_path / "away"
    away.mkdir()

    def command(*words: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        program = [sys.executable, str(site / "bin" / words[0]), *words[1:]]
        return subprocess.run(program, cwd=away, env=environment, capture_output=True, text=True)

    done = command("rove-train", "--config", str(recipe), "--workdir", "run", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '"variant": "rove"' in done.stdout
    for name in ("rove-prepare", "rove-eval"):
        asked = command(name, "--help")
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.startswith("usage:")
    wrong = command("rove-train", "--config", str(recipe), "--workdir", "run", "--trainig.steps", "5")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith(
        "error: --trainig.steps: no such field; did you mean --training.steps?"
    )
    assert list(away.iterdir()) == [], "a dry run and a refusal leave nothing behind"
