"""A run folder opened for evaluation: its model, its tokenizer and its data, checked to belong together."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jax.sharding import Mesh

from rove_jax import storage, zoo
from rove_jax.config import Config, Data, fingerprint, to_dict
from rove_jax.data import prepare, sources, tokenizers
from rove_jax.data.prepared import MANIFEST, Document
from rove_jax.distributed import is_writer
from rove_jax.errors import require
from rove_jax.evaluation import results
from rove_jax.evaluation.perplexity import perplexities, token_bytes, window_count
from rove_jax.evaluation.processes import of_first, progress
from rove_jax.evaluation.protocol import Protocol, Split, Together, choose
from rove_jax.models.accounting import parameter_count
from rove_jax.training.run_folder import FREE, Origin

Step = int | Literal["last", "best"]
FOLDER = "evaluation"
"""Where in the run folder results are kept."""


@dataclass(frozen=True)
class Run:
    """One checkpoint of a run and the tokenizer it was trained with."""

    workdir: Path
    config: Config
    params: dict
    step: int
    tokenizer: tokenizers.Tokenizer
    origin: Origin
    """The data and tokenizer that the checkpoint names."""
    weights: str = ""
    """What the digests of the checkpoint's parameters come to: a run trained again may have the config of the first."""

    @property
    def provenance(self) -> dict:
        """What identifies the checkpoint in a result file."""
        cfg = self.config
        values = dict(learnt(to_dict(cfg)))
        return {
            "run": storage.absolute(self.workdir).name,
            "checkpoint": str(storage.absolute(self.workdir)),
            "step": self.step,
            "steps": cfg.training.steps,
            "training_tokens": self.step * cfg.training.batch_size * cfg.data.context_length,
            "config": values,
            "config_hash": fingerprint(values),
            "weights": self.weights,
            "data_fingerprint": self.origin.data_fingerprint,
            "tokenizer": self.tokenizer.name,
            "tokenizer_identity": self.origin.tokenizer_identity,
            "training_length": cfg.data.context_length,
            "parameters": parameter_count(cfg.model),
            "variant": cfg.model.variant,
        }


def open_run(workdir: Path, *, step: Step = "last") -> Run:
    """Load checkpoint `step` ("last", "best" or a number) of the run in `workdir`.

    Raises `UsageError` if there is no run or no such checkpoint, or if its tokenizer is another one now.
    """
    workdir = storage.place(workdir)
    loaded = zoo.load_model(workdir, step=step)
    tokenizer = tokenizers.load(loaded.config.data)
    origin = Origin(loaded.metadata["data_fingerprint"], loaded.metadata["tokenizer_identity"])
    Origin(origin.data_fingerprint, tokenizer.identity).check(loaded.metadata, workdir)
    weights = fingerprint(loaded.metadata["arrays"]["params"])
    return Run(workdir, loaded.config, loaded.params, loaded.step, tokenizer, origin, weights)


def dialled(run: Run, alpha: float) -> Run:
    """The same weights with values (and outputs, back) turned by `alpha` times the angles of queries and keys.

    From a RoPE checkpoint at 0 to a RoVE model at 1, and all of it relative. `UsageError` for any other variant.
    """
    model = run.config.model
    require(model.variant in ("rope", "rove"), "model.variant", model.variant, "the dial is for rope and rove")
    values = dataclasses.replace(model.rotary, alpha=alpha)
    model = dataclasses.replace(model, variant="custom", value_rotary=values)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, model=model))


def open_data(run: Run) -> prepare.Prepared:
    """The data the run was trained on, prepared again if need be; `UsageError` if it has changed since."""
    data = prepare.ensure(run.config.data, progress=True)
    Origin(data.fingerprint, run.tokenizer.identity).check(dataclasses.asdict(run.origin), run.workdir)
    return data


def open_text(run: Run, text: str) -> prepare.Prepared:
    """Other data than the run's, in its tokens: see `Protocol.text`. Small ones are prepared into the cache.

    Raises `UsageError` if they are not there, too large to prepare on the way, or prepared with another tokenizer.
    """
    own = run.config.data
    common: dict[str, Any] = {name: getattr(own, name) for name in ("tokenizer", "tokenizer_path")}
    common["context_length"] = 1  # documents are read whole: a text too short for `lengths` is for `choose` to refuse
    if own.prepared is None and not own.mixture:
        common["cache"] = own.cache
    if text.startswith("tfds:"):
        name, _, folder = text.partition("@")
        return prepare.ensure(Data(source=name, path=folder or None, **common), progress=True)
    manifest = storage.place(text) / MANIFEST
    if manifest.is_file():
        common["context_length"] = json.loads(manifest.read_text())["context_length"]
        return prepare.ensure(Data(prepared=text, **common))
    return prepare.ensure(Data(source="files", path=text, **common), progress=True)


def one_file(text: str) -> sources.OneFile | None:
    """A text that is a single file and not too large to be read at once: it is one document, with nothing held out."""
    path = storage.place(text) if not text.startswith("tfds:") else None
    if path is None or storage.remote(path) or (path / MANIFEST).is_file():
        return None
    source = sources.files(path, whole=True)
    return source if isinstance(source, sources.OneFile) and source.units[0].bytes <= prepare.SMALL else None


def default_split(text: str) -> Split:
    """Which documents of another text are measured on: those held out of a prepared folder, else all."""
    prepared_folder = not text.startswith("tfds:") and (storage.place(text) / MANIFEST).is_file()
    return "validation" if prepared_folder else "all"


def documents_of(run: Run, protocol: Protocol) -> tuple[list[Document], str]:
    """(the documents that `protocol` is measured on, the fingerprint of the data they are from)."""
    file = one_file(protocol.text) if protocol.text is not None and protocol.split == "all" else None
    if file is not None:
        found = [Document(text.id, run.tokenizer.encode(text.text)) for text in file.documents()]
        return choose(found, protocol), file.fingerprint()
    data = open_data(run) if protocol.text is None else open_text(run, protocol.text)
    if protocol.split == "all":
        return choose(Together(data.documents("train"), data.documents("validation")), protocol), data.fingerprint
    return choose(data.documents(protocol.split), protocol), data.fingerprint


def settings_of(protocol: Protocol, fingerprint: str) -> dict[str, Any]:
    """What is stored of a protocol: with the fingerprint of data that are not the run's, since a path may change."""
    return {**dataclasses.asdict(protocol), **({"text_fingerprint": fingerprint} if protocol.text is not None else {})}


def learnt(values: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of the fields of a config, as JSON values, that decide what is learnt."""
    for key, value in values.items():
        name = f"{at}{key}"
        if name in FREE:
            continue
        if isinstance(value, dict):
            yield from learnt(value, f"{name}.")
        else:
            yield name, value


def default_protocol(config: Config) -> Protocol:
    """The protocol a run's config asks for: `evaluation.lengths`, or 1, 2, 4, 8 and 16 times the training length."""
    asked = config.evaluation
    lengths = asked.lengths or tuple(config.data.context_length * 2**power for power in range(5))
    # Where documents were trained apart, none of them has ever followed an end-of-text token.
    prefix = "none" if config.data.segments else "document"
    return Protocol(lengths, asked.scalings, documents=asked.documents, prefix=prefix)


def measure_perplexity(run: Run, protocol: Protocol, mesh: Mesh | None = None) -> dict:
    """A result document of the perplexities of `run` under `protocol`, with a progress bar on stderr.

    Args:
        mesh: None: the devices of this process, which then works alone. Otherwise all processes call this.
    """
    cfg, eot, trained = run.config.model, run.tokenizer.eot, run.config.data.context_length
    documents, source = documents_of(run, protocol)
    count = window_count(cfg, documents, protocol, training_length=trained, eot=eot)
    with progress(count, f"{run.workdir.name}: perplexity", "window") as bar:
        records = perplexities(
            cfg,
            run.params,
            documents,
            protocol,
            training_length=trained,
            eot=eot,
            token_bytes=token_bytes(run.tokenizer),
            mesh=mesh,
            advance=bar.update,
            now=bar.now,
        )
    return results.document("perplexity", run.provenance, settings_of(protocol, source), records)


def stored_perplexity(run: Run, protocol: Protocol, mesh: Mesh | None = None) -> tuple[dict, Path]:
    """The same with the file it is in: found in the run folder if measured before, else measured and stored there."""
    first, agreed = (True, lambda value: value) if mesh is None else (is_writer(), of_first)
    folder = run.workdir / FOLDER
    source = "" if protocol.text is None else documents_of(run, protocol)[1]
    settings = settings_of(protocol, source)
    found = results.find(folder, "perplexity", run.provenance, settings) if first else None
    known = agreed(found and (found[0], found[1].name))
    if known is not None:
        return known[0], folder / known[1]
    path = folder / f"perplexity-{run.step}-{fingerprint(settings)}.json"
    if first:
        results.check_writable(path, "workdir")
    document = measure_perplexity(run, protocol, mesh)
    if first:
        results.write(path, document)
    return document, path
