"""The process a command runs in: whether it writes, where compiled programs are kept, what it does with memory."""

import ctypes
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

ACCELERATOR_PLUGINS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")


def is_writer() -> bool:
    """Whether this process writes logs and prints: the first one does. (Checkpoints are written by all.)"""
    import jax

    return jax.process_index() == 0


def user_cache() -> Path:
    """The folder for what can be made again: $XDG_CACHE_HOME/rove_jax, by default ~/.cache/rove_jax."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rove_jax"


def keep_compiled(folder: str | None = None) -> Path:
    """Turn XLA's persistent compilation cache on, in `folder` or in the user's cache, and return where it is.

    JAX makes the folder when it first writes there, and only warns if it cannot.
    """
    import jax

    path = Path(folder) if folder else user_cache() / "xla"
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return path


def keep_freed_memory() -> None:
    """Where jax will compute on a CPU with glibc: let the C library keep what XLA frees after a step for the next one.

    By default glibc hands large blocks back to the kernel, which clears the same pages again a moment later: 290 MB a
    step at `tiny`, a third of its time. The price is a larger resident size. Must come before jax starts its threads,
    each of which would get a heap of its own that is too small for such blocks; so the platform is guessed.
    """
    asked = os.environ.get("JAX_PLATFORMS")
    if asked != "cpu" if asked else any(map(importlib.util.find_spec, ACCELERATOR_PLUGINS)):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    # Numbers from glibc's malloc.h: M_ARENA_MAX (one heap that all threads share), M_MMAP_MAX, M_TRIM_THRESHOLD.
    for option, value in ((-8, 1), (-4, 0), (-1, 2**31 - 1)):
        mallopt(option, value)


def last_line(text: str) -> None:
    """Print `error: text` as a line of its own, past all buffers and locks, in the handler of a signal that ends this
    process: a progress bar that stands there keeps its line."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
    os.write(2, f"{chr(10) if len(bars) else ''}error: {text}\n".encode())


def screen() -> dict[str, Any]:
    """What a progress bar (tqdm 4.67) must be told of the terminal on stderr: nothing, unless that does not know its
    size, as in `docker run -t` or `script`. It would take 0 lines for -1, and show nothing."""
    try:
        columns, lines = os.get_terminal_size(2)
    except OSError:
        return {}
    return {} if columns and lines else {"ncols": columns or 79, "nrows": lines or 24}


def end_within(seconds: float, code: int) -> None:
    """End this process with `code` in so many seconds, whatever it is doing then, unless it has ended before."""

    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
