"""rove-prepare: turn text into a prepared dataset in a folder of its own."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rove_jax.cli import exits

DESCRIPTION = """Prepare a source of text as a TFDS dataset in ArrayRecord form: training windows and whole documents.
What is prepared is set by the data fields of a recipe, such as --data.source files --data.path books
--data.tokenizer gpt2 --data.context-length 1024. Training then takes --data.prepared DIR. Sources of up to 256 MB need
no such command: training prepares them into a cache."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (the words after its name; None: those of the process). Returns its exit code."""
    return exits.run(lambda: prepare(sys.argv[1:] if argv is None else argv))


def prepare(argv: Sequence[str]) -> None:
    """Parse `argv`, prepare the dataset unless it is there, and print what it holds."""
    parser = exits.Parser(prog="rove-prepare", description=DESCRIPTION, epilog="Any field of a recipe may follow.")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the dataset; new, or this very dataset")
    parser.add_argument("--config", metavar="FILE", help="recipe whose data fields are the defaults")
    parser.add_argument("--verify", action="store_true", help="read every record and compare it with its hash")
    options, words = parser.parse_known_args(argv)

    # After the arguments, so that --help and mistakes in them cost no imports.
    from rove_jax import recipes
    from rove_jax.config import Config
    from rove_jax.data import prepare, prepared, sources, tokenizers
    from rove_jax.errors import UsageError

    config = recipes.load(options.config, words) if options.config else recipes.override(Config(), words)
    data, folder = config.data, Path(options.out).expanduser()
    source, tokenizer = sources.load(data), tokenizers.load(data)
    key = prepare.identify(source, tokenizer, data.context_length)
    prepare.build(source, tokenizer, data.context_length, folder, key=key, progress=True)
    dataset = prepared.load(folder, data)
    if dataset.manifest["key"] != key:
        raise UsageError(
            f"{folder}: already holds another dataset, from {dataset.manifest['source']}; choose another --out"
        )
    if options.verify:
        prepare.verify(dataset)
    print(summary(dataset))


def summary(dataset) -> str:
    """What a prepared dataset holds, as a small table."""
    manifest = dataset.manifest
    lines = [f"{dataset.path}: {manifest['source']}, {manifest['tokenizer']} tokens, fingerprint {dataset.fingerprint}"]
    columns = ("documents", "tokens", "windows", "dropped_tail")
    lines.append(f"{'':12}" + "".join(f"{name.replace('_', ' '):>14}" for name in columns))
    for split, counts in manifest["splits"].items():
        lines.append(f"{split:12}" + "".join(f"{counts[name]:>14,}" for name in columns))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
