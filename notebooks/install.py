# Finds rove_jax and, where it is not installed yet, installs it. With the JAX that this runtime came with, if it can.
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def install(folder: Path) -> None:
    """Put rove_jax and what the notebooks use into this Python."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    there = [name for name in ("jax", "jaxlib") if importlib.util.find_spec(name)]
    kept = [f"{name}=={importlib.metadata.version(name)}" for name in there]
    if kept and subprocess.run([*pip, f"{folder}[text,ruler]", "ipywidgets", *kept]).returncode == 0:
        print("installed, with", ", ".join(kept))
        return
    # None, or one that is too old or too new. Another one needs the plugin that goes with it.
    devices = ",tpu" if list(Path("/dev").glob("accel*")) else ",cuda" if shutil.which("nvidia-smi") else ""
    print(f"rove_jax cannot use {', '.join(kept)}:" if kept else "no JAX is here:", f"installing one{devices}")
    subprocess.run([*pip, f"{folder}[text,ruler{devices}]", "ipywidgets"], check=True)
    if "jax" in sys.modules:
        sys.exit("Installed. The old JAX is loaded already: restart the runtime, then run this cell again.")


CHECKOUT = checkout()
if importlib.util.find_spec("rove_jax") is None:
    install(CHECKOUT)
    importlib.invalidate_caches()

TINY = "ROVE_NOTEBOOK_TINY" in os.environ  # tests set it: everything as small as it runs, and nothing to be seen in it
RUNS = Path(os.environ.get("ROVE_NOTEBOOK_RUNS") or CHECKOUT / "runs")
SMALLER = """
--training.steps 4 --training.validation-tokens 256 --data.context-length 64
--model.layers 2 --model.width 16 --model.head-dim 16 --model.mlp-width 16
--evaluation.lengths 64 128 --evaluation.scalings none --evaluation.documents 2 --evaluation.max-new-tokens 8
""".split() if TINY else []  # fmt: skip


def show(picture, name):
    """The picture, which is also kept in the folder `figures` of RUNS: PNG, SVG, and its numbers as CSV."""
    picture.save(RUNS / "figures", name)
    return picture
