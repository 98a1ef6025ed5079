"""Text datasets of TensorFlow Datasets, read without TensorFlow: they must lie on the disk in ArrayRecord form."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import constants

from rove_jax.data import records
from rove_jax.data.documents import Split, Text, Unit
from rove_jax.data.held_out import hashed_out
from rove_jax.errors import RunError, UsageError, nearest

VALIDATION_SPLITS = ("validation", "valid", "dev", "test")
"""Names under which datasets hold text out, the preferred first."""
READ = 256
"""Examples read at once."""


def load(name: str, data_dir: str | None, feature: str, share: float | None = None) -> "TfdsText":
    """The dataset NAME, NAME/VERSION or NAME/CONFIG/VERSION below `data_dir` (None: TFDS's own folder).

    share: how much of a dataset without a split for it is held out (`hashed_out`).

    Only the disk is looked at; TFDS's `builder` would import the code of the dataset and ask the network.
    """
    root = Path(data_dir or constants.DATA_DIR).expanduser()
    folder = find(root, name)
    builder = tfds.builder_from_directory(str(folder))
    if builder.info.file_format is not tfds.core.FileFormat.ARRAY_RECORD:
        form = builder.info.file_format.value if builder.info.file_format else "an unknown form"
        raise UsageError(
            f"data.source = 'tfds:{name}': {folder} is stored as {form}, not as array_record; {how_to(root, name)}"
        )
    features = dict(cast(tfds.features.FeaturesDict, builder.info.features).items())
    texts = [key for key, value in features.items() if is_text(value)]
    if feature not in texts:
        raise UsageError(
            f"data.text_feature = {feature!r}: not a text of {name}, which has {', '.join(texts) or 'none'}"
            f"{nearest(feature, texts)}"
        )
    missing = [path for split in builder.info.splits.values() for path in split.filepaths if not Path(path).is_file()]
    if missing:
        raise UsageError(f"data.source = 'tfds:{name}': {missing[0]} is missing; {how_to(root, name)}")
    return TfdsText(name, folder, builder, feature, share)


def find(root: Path, name: str) -> Path:
    """The folder below `root` that holds `dataset_info.json`: given in full, or the highest version of it."""
    folder = root / name
    if (folder / "dataset_info.json").is_file():
        return folder
    found = sorted(path.parent for path in folder.glob("*/dataset_info.json"))
    versions = [path for path in found if tfds.core.Version.is_valid(path.name)]
    if versions:
        return max(versions, key=lambda path: tfds.core.Version(path.name))
    configs = sorted({path.parent.parent.name for path in folder.glob("*/*/dataset_info.json")})
    if configs:
        raise UsageError(f"data.source = 'tfds:{name}': choose one of its configs, such as 'tfds:{name}/{configs[0]}'")
    raise UsageError(
        f"data.source = 'tfds:{name}': no such dataset in data_dir {root} in array_record form; {how_to(root, name)}"
    )


def is_text(feature: Any) -> bool:
    """Whether a TFDS feature is one string (`Text` is the usual such feature, not the only one)."""
    return isinstance(feature, tfds.features.Tensor) and feature.shape == () and feature.np_dtype == np.object_


def how_to(root: Path, name: str) -> str:
    """What to do about a dataset that is not there, or not whole, or in another form."""
    return f"prepare it with: tfds build {name} --file_format=array_record --data_dir={root}"


class TfdsText:
    """One document per example; ids like `train/00000012`. Without a validation or test split, ids decide by hash."""

    whole_from = 0

    def __init__(self, name: str, folder: Path, builder: Any, feature: str, share: float | None) -> None:
        self.name = name.replace("/", "-")
        self.folder, self.builder, self.feature, self.share = folder, builder, feature, share
        splits = builder.info.splits
        train = "train" if "train" in splits else next(iter(splits))
        held_out = next((split for split in VALIDATION_SPLITS if split in splits and split != train), None)
        self.parts = [train] if held_out is None else [train, held_out]
        self.units: Sequence[Unit] = [Unit(name, sum(splits[part].num_bytes for part in self.parts))]

    def documents(self, unit: int = 0) -> Iterator[Text]:
        if len(self.parts) == 2:
            for split, part in zip(("train", "validation"), self.parts):
                yield from self.examples(part, split, range(self.builder.info.splits[part].num_examples))
            return
        (part,) = self.parts
        count = self.builder.info.splits[part].num_examples
        held_out = hashed_out((identity(part, index) for index in range(count)), self.share)
        inside = [identity(part, index) in held_out for index in range(count)]
        yield from self.examples(part, "train", [index for index in range(count) if not inside[index]])
        yield from self.examples(part, "validation", [index for index in range(count) if inside[index]])

    def examples(self, part: str, split: Split, indices: Sequence[int]) -> Iterator[Text]:
        source = self.builder.as_data_source(split=part)
        for start in range(0, len(indices), READ):
            block = indices[start : start + READ]
            try:
                examples = source.__getitems__(block)
            except (RuntimeError, IndexError, ValueError) as error:  # what array_record makes of a damaged file
                raise RunError(f"{self.folder}: {part} cannot be read ({records.first_clause(error)})") from error
            for index, example in zip(block, examples):
                try:
                    text = example[self.feature].decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UsageError(f"{self.folder}: example {index} of {part} is not UTF-8 text") from error
                yield Text(split, identity(part, index), text)

    def fingerprint(self) -> str:
        """Of the files as they are; decoding every example to hash its text would take minutes."""
        share = "" if self.share is None else f" {self.share}"
        result = hashlib.sha256(f"{self.feature}{share}".encode())
        for path in sorted(path for path in self.folder.iterdir() if path.is_file()):
            result.update(path.name.encode() + b"\0" + path.stat().st_size.to_bytes(8, "little"))
            with path.open("rb") as file:
                while block := file.read(2**20):
                    result.update(block)
        return result.hexdigest()


def identity(part: str, index: int) -> str:
    """The id of an example: its place in a TFDS split, which no later version of a dataset changes."""
    return f"{part}/{index:08d}"
