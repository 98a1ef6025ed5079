# Finds rove_jax and installs what is not here of it and of what the notebooks need. The JAX that this runtime came with
# is kept, if rove_jax can use it.
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

# "full": as the text describes it; "short": about two minutes, weaker results; "tiny": it only runs, for tests.
SIZE = "full"  # @param ["full", "short", "tiny"]
ADDRESS = ""  # what `git clone` takes where the notebook lies in no checkout, as on Colab; there is no public one yet


def checkout() -> Path:
    """The checkout that this notebook lies in, or one made from ADDRESS."""
    for folder in (Path.cwd(), *Path.cwd().parents, Path.cwd() / "rove-jax"):
        if (folder / "rove_jax" / "zoo.py").is_file():
            return folder
    if not ADDRESS:
        sys.exit("The notebook lies in no checkout of rove-jax. Open it from one, or set ADDRESS to one git can clone.")
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ADDRESS, "rove-jax"], check=True)
    return Path.cwd() / "rove-jax"


def missing(folder: Path) -> list[str]:
    """What this Python lacks of what the checkout and the notebooks ask for, in pip's words."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras, lacking = project["optional-dependencies"], []
    for need in (*project["dependencies"], *extras["text"], *extras["ruler"], "ipywidgets"):
        name, exact = re.match(r"[\w.-]+", need)[0], need.partition("==")[2]
        try:
            there = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            there = None
        if there is None or exact not in ("", there):
            lacking.append(need)
    return lacking


def install(folder: Path, needs: list[str]) -> None:
    """Put `needs` into this Python, and rove_jax if it is not there, from the folder."""
    pip, began = [sys.executable, "-m", "pip", "install", "--quiet"], time.monotonic()
    there = [name for name in ("jax", "jaxlib") if importlib.util.find_spec(name)]
    kept = [f"{name}=={importlib.metadata.version(name)}" for name in there]
    whole = importlib.util.find_spec("rove_jax") is None
    first = [f"{folder}[text,ruler]", "ipywidgets"] if whole else needs
    what = "rove_jax and what it needs" if whole else ", ".join(needs)
    print(f"Installing {what}, silently; it may take minutes.", flush=True)
    if kept and subprocess.run([*pip, *first, *kept]).returncode == 0:
        print(f"installed in {time.monotonic() - began:.0f} s, with", ", ".join(kept))
        return
    if kept and not whole:
        sys.exit(f"pip could not install that beside {', '.join(kept)}; its reason stands above.")
    # None, or one that is too old or too new. Another one needs the plugin that goes with it.
    devices = ",tpu" if list(Path("/dev").glob("accel*")) else ",cuda" if shutil.which("nvidia-smi") else ""
    print(f"rove_jax cannot use {', '.join(kept)}:" if kept else "no JAX is here:", f"installing one{devices}")
    subprocess.run([*pip, f"{folder}[text,ruler{devices}]", "ipywidgets"], check=True)
    print(f"installed in {time.monotonic() - began:.0f} s")
    if "jax" in sys.modules:
        sys.exit("Installed. The old JAX is loaded already: restart the runtime, then run this cell again.")


def sized(full, short, tiny):
    """What stands for the chosen SIZE."""
    return {"full": full, "short": short, "tiny": tiny}[SIZE]


SIZE = os.environ.get("ROVE_NOTEBOOK_SIZE") or SIZE  # the environment goes first, for runs without a browser
if SIZE not in ("full", "short", "tiny"):
    sys.exit(f"SIZE = {SIZE!r}: must be full, short or tiny (it may come from ROVE_NOTEBOOK_SIZE)")
CHECKOUT = checkout()
lacking = missing(CHECKOUT)
if lacking or importlib.util.find_spec("rove_jax") is None:
    install(CHECKOUT, lacking)
    importlib.invalidate_caches()
else:
    print("rove_jax and what the notebooks need are here; nothing was installed")

# Each size has a folder of its own, since a folder of runs holds one run of a name.
RUNS = Path(os.environ.get("ROVE_NOTEBOOK_RUNS") or CHECKOUT / "runs") / sized("", "short", "tiny")
SMALLER = sized(
    "",
    "--training.steps 250 --training.validation-every 50 --evaluation.lengths 128 512 1024 --evaluation.documents 4 "
    "--evaluation.max-new-tokens 100",
    "--training.steps 4 --training.validation-tokens 256 --data.context-length 64 --model.layers 2 --model.width 16 "
    "--model.head-dim 16 --model.mlp-width 16 --evaluation.lengths 64 128 --evaluation.scalings none "
    "--evaluation.documents 2 --evaluation.max-new-tokens 8",
).split()  # words for a recipe, as on the command line of `python -m train`
if "ipykernel" in sys.modules:
    sys.stderr.isatty = lambda: True  # progress bars are drawn on terminals alone; a notebook can show them too
print(f"size {SIZE}; runs and figures go to {RUNS}")


def show(picture, name):
    """The picture, which is also kept in the folder `figures` of RUNS: PNG, SVG, and its numbers as CSV."""
    picture.save(RUNS / "figures", name)
    return picture


def render(*parts):
    """Paragraphs and tables, as Markdown that the notebook draws."""
    from IPython.display import Markdown, display  # comes with the kernel

    display(Markdown("\n\n".join(parts)))
