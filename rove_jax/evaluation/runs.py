"""A run folder opened for evaluation: its model, its data and its tokenizer, checked to belong together."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from rove_jax import zoo
from rove_jax.config import Config, fingerprint
from rove_jax.data import prepare, tokenizers
from rove_jax.errors import UsageError
from rove_jax.evaluation import results
from rove_jax.evaluation.perplexity import perplexities, token_bytes, window_count
from rove_jax.evaluation.protocol import Protocol, choose
from rove_jax.models.accounting import parameter_count


@dataclass(frozen=True)
class Run:
    """One checkpoint of a run, with what it takes to evaluate it."""

    workdir: Path
    config: Config
    params: dict
    step: int
    tokenizer: tokenizers.Tokenizer
    data: prepare.Prepared

    @property
    def provenance(self) -> dict:
        """What identifies the checkpoint and its data in a result file."""
        cfg = self.config
        return {
            "run": self.workdir.resolve().name,
            "checkpoint": str(self.workdir.resolve()),
            "step": self.step,
            "config_hash": fingerprint(cfg),
            "data_fingerprint": self.data.fingerprint,
            "tokenizer": self.tokenizer.name,
            "tokenizer_identity": self.tokenizer.identity,
            "training_length": cfg.data.context_length,
            "parameters": parameter_count(cfg.model),
            "variant": cfg.model.variant,
        }


def open_run(workdir: Path, *, step: int | str = "last") -> Run:
    """Load checkpoint `step` ("last", "best" or a number) of the run in `workdir`, and the data it was trained on.

    Raises:
        UsageError: no run or no such checkpoint there, or data or a tokenizer other than the run's.
    """
    loaded = zoo.load_model(workdir, step=step)
    cfg = loaded.config
    tokenizer = tokenizers.load(cfg.data)
    data = prepare.ensure(cfg.data)
    found = {"data_fingerprint": data.fingerprint, "tokenizer_identity": tokenizer.identity}
    for name, value in found.items():
        trained = loaded.metadata[name]
        if value != trained:
            raise UsageError(
                f"{workdir}: {name} = {value}: the run was trained with {trained}; set data.prepared to that data"
            )
    return Run(Path(workdir), cfg, loaded.params, loaded.step, tokenizer, data)


def default_protocol(config: Config) -> Protocol:
    """The protocol a run's config asks for: `evaluation.lengths`, or 1, 2, 4, 8 and 16 times the training length."""
    asked = config.evaluation
    lengths = asked.lengths or tuple(config.data.context_length * 2**power for power in range(5))
    return Protocol(lengths, asked.scalings, documents=asked.documents)


def measure_perplexity(run: Run, protocol: Protocol) -> dict:
    """A result document of perplexities of `run` under `protocol`, computed now, with a progress bar on stderr."""
    cfg, eot = run.config.model, run.tokenizer.eot
    documents = choose(run.data.documents(protocol.split), protocol)
    lengths = {"training_length": run.config.data.context_length}
    count = window_count(cfg, documents, protocol, eot=eot, **lengths)
    with tqdm(total=count, desc=f"{run.workdir.name} perplexity", unit="window", disable=None) as bar:
        records = perplexities(
            cfg,
            run.params,
            documents,
            protocol,
            eot=eot,
            token_bytes=token_bytes(run.tokenizer),
            advance=bar.update,
            **lengths,
        )
    return results.document("perplexity", run.provenance, dataclasses.asdict(protocol), records)


def stored_perplexity(run: Run, protocol: Protocol) -> tuple[dict, Path]:
    """The same, read from the run folder if it was measured there before, else measured and stored there."""
    folder = run.workdir / "evaluation"
    found = results.find(folder, "perplexity", run.provenance, dataclasses.asdict(protocol))
    if found is not None:
        return found[1], found[0]
    path = folder / f"perplexity-{fingerprint({'step': run.step, **dataclasses.asdict(protocol)})}.json"
    results.check_writable(path, "workdir")
    document = measure_perplexity(run, protocol)
    results.write(path, document)
    return document, path
