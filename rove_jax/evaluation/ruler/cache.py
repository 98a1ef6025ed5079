"""Samples kept between runs, under a hash of everything that decides them."""

import gzip
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rove_jax.distributed import is_writer
from rove_jax.errors import RunError
from rove_jax.evaluation import results
from rove_jax.evaluation.ruler import material as materials
from rove_jax.evaluation.ruler.fit import Plan, Sample, fit
from rove_jax.evaluation.ruler.item import Item, Material

FORMAT = 2
"""To be raised when a generator is changed, or samples that were kept are taken for new ones."""


def folder() -> Path:
    """Where samples are kept if nothing else is said: in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rove_jax" / "ruler"


def key(plan: Plan, tokenizer: str, material: Material, samples: int) -> str:
    """The hash; `tokenizer`: its identity."""
    decides = (FORMAT, plan.name, repr(plan.generator), plan.length, plan.seed, plan.reserve, samples, tokenizer)
    texts = sorted(materials.identity(material).items())
    return hashlib.sha256(json.dumps([decides, texts]).encode()).hexdigest()


def file_name(plan: Plan, tokenizer: str, material: Material, samples: int) -> str:
    """The file that has the samples of a plan; arguments as in `key`."""
    return f"{plan.name}-{plan.length}-{key(plan, tokenizer, material, samples)[:20]}.jsonl.gz"


def stored(
    plan: Plan,
    tokenizer: str,
    material: Material,
    samples: int,
    where: Path,
    advance: Callable[[int], object] = lambda done: None,
) -> list[Sample]:
    """The samples of a plan: from the cache, or made and put there. A damaged file is named, and made again."""
    path = where / file_name(plan, tokenizer, material, samples)
    if os.path.exists(path):  # False too where the folder may not be looked into
        found = read(path)
        if found is not None and len(found) == samples:
            advance(samples)
            return found
        print(f"{path}: damaged; made again", file=sys.stderr)
    if is_writer():
        results.check_writable(path, "--cache")  # before the samples are made
    made = fit(plan, material, samples, advance)
    body = "".join(json.dumps([*sample[:-1], sample.item._asdict()]) + "\n" for sample in made)
    head = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest()})
    try:
        if is_writer():  # of several processes each makes them, which is no slower than waiting
            results.write(path, gzip.compress(f"{head}\n{body}".encode(), mtime=0))
    except RunError as error:
        raise RunError(f"--cache: {error}; make room, or choose another folder") from error
    return made


def read(path: Path) -> list[Sample] | None:
    """The samples of a file, or None if it is not as it was written."""
    try:
        head, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
        if json.loads(head) != {"sha256": hashlib.sha256(body).hexdigest()}:
            return None
        rows = [json.loads(line) for line in body.splitlines()]
    except (ValueError, EOFError, OSError, zlib.error):  # gzip raises all but the first
        return None
    return [
        Sample(index, units, tokens, room, Item(**{name: fixed(value) for name, value in item.items()}))
        for index, units, tokens, room, item in rows
    ]


def fixed(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(value) if isinstance(value, list) else value
