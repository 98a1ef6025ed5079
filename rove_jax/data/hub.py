"""FineWeb-Edu from the Hugging Face hub. Not tried against the hub itself, which the tests cannot reach."""

from rove_jax.errors import RunError, UsageError

REPOSITORY = "HuggingFaceFW/fineweb-edu"
SAMPLE = "sample/10BT"
"""The sample of ten billion GPT-2 tokens, 28 GB."""


def download() -> str:
    """The folder in the hub's own cache with the files of the sample, those that are missing downloaded first.

    A download that was interrupted goes on at the next call. Raises `UsageError` without the package, `RunError`
    without the network.
    """
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UsageError(
            f"data.source = 'fineweb-edu': to download it, pip install huggingface_hub; or set data.path to a folder "
            f"with the files of {SAMPLE} in {REPOSITORY}"
        ) from error
    try:
        patterns = f"{SAMPLE}/*.parquet"
        folder = huggingface_hub.snapshot_download(REPOSITORY, repo_type="dataset", allow_patterns=patterns)
    except (OSError, RuntimeError, ValueError) as error:  # all errors of the package and of its connection are these
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RunError(
            f"{REPOSITORY}: cannot be downloaded ({reason}); the same command goes on, or set data.path to a folder "
            f"with the files of its {SAMPLE}"
        ) from error
    return f"{folder}/{SAMPLE}"  # beside it may lie what was downloaded for something else
