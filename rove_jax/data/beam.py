"""Preparation by Apache Beam, for Dataflow, Flink, Spark and the like: the pieces of a job as elements of a pipeline.

An element is the number of a piece, and whoever gets it writes the files of that piece, so no record is ever shuffled
and the files are those that `workers` would write. A TFDS Beam builder would send every record through the runner's
shuffle, order them by a hash of a key, and divide them into files anew; what comes out here is read by TFDS as well.

The folder of the dataset, the source and the tokenizer's files must be the same on all machines: a shared disk, or a
bucket.
"""

import dataclasses
from collections.abc import Callable, Sequence

from rove_jax import storage
from rove_jax.data.shards import Job, Maker, Report
from rove_jax.errors import RunError, UsageError


def execute(options: Sequence[str]) -> Callable[[Job, Sequence[int], Report], None]:
    """An `Execute` of `build` with Beam's pipeline options, such as `runner=FlinkRunner`, `flink_master=HOST:8081`.

    Nothing is reported on the way but by the runner itself. Raises `UsageError` without the package, or for a runner
    that does not exist.
    """
    try:
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
        from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UsageError("--beam: needs the package apache-beam; pip install apache-beam") from error

    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--{option}" for option in options]))
    except (ValueError, ImportError) as error:
        raise UsageError(f"--beam {' '.join(options)}: {error}") from error

    class Make(beam.DoFn):
        def __init__(self, job: Job) -> None:
            self.job = job

        def setup(self) -> None:
            self.maker = Maker(self.job)

        def process(self, piece: int) -> None:
            self.maker.make(piece, lambda bytes, tokens: None)

    def run(job: Job, pieces: Sequence[int], report: Report) -> None:
        job = dataclasses.replace(job, folder=storage.absolute(job.folder))  # other machines are in other places
        try:
            with pipeline:
                numbers = pipeline | "pieces" >> beam.Create(pieces) | "apart" >> beam.Reshuffle()
                _ = numbers | "make" >> beam.ParDo(Make(job))
        except RuntimeError as error:  # what an element raised comes back as one of these, with the runner's account
            raise RunError(f"Beam: {str(error).strip().splitlines()[-1]}") from error

    return run
