"""How a command ends: the last line on stderr, the exit code, and which errors are left alone."""

import errno
import os
import subprocess
import sys

import jax
import pytest

from rove_jax.cli import exits
from rove_jax.errors import RunError, UsageError


def raising(error: BaseException):
    def main() -> int:
        print("some output")
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("training.steps = 0: must be at least 1"), 2, "error: training.steps = 0: must be at least 1"),
        (UsageError("two\nlines"), 2, "error: two lines"),
        (RunError("loss is nan at step 7"), 1, "error: loss is nan at step 7"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "x/y"), 1, "error: x/y: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "z"), 1, "error: z: Permission denied"),
        (SystemExit("stopped"), 1, "error: stopped"),
        (SystemExit(143), 143, "error: asked to stop (SIGTERM)"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"),
            1,
            "error: out of device memory (Out of memory allocating 9 bytes.); use a smaller batch, "
            "training.accumulation or model.remat",
        ),
        (RuntimeError("Unable to initialize backend 'x': no"), 1, "error: Unable to initialize backend 'x': no"),
    ],
)
def test_what_a_person_can_cause_is_one_line_and_a_code(error, code, line, capfd) -> None:
    assert exits.run(raising(error)) == code
    assert capfd.readouterr().err == line + "\n"


@pytest.mark.parametrize("code", [130, 0, 2])
def test_an_exit_keeps_its_code(code: int, capfd) -> None:
    assert exits.run(raising(SystemExit(code))) == code
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bug"),
        FileNotFoundError(errno.ENOENT, "bug", "x"),
        AssertionError(),
        jax.errors.JaxRuntimeError("INTERNAL: bug"),
    ],
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        exits.run(raising(error))


def test_done_is_zero() -> None:
    assert exits.run(lambda: None) == 0
    assert exits.run(lambda: 0) == 0
    assert exits.run(lambda: 75) == 75


def test_a_reader_that_leaves_is_not_an_error() -> None:
    program = """
import sys
from rove_jax.cli import exits
def main():
    for line in range(100_000):
        print(line)
sys.exit(exits.run(main))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_neither_a_closed_stream_nor_a_narrow_encoding_ends_a_command() -> None:
    program = "import sys; from rove_jax.cli import exits; sys.exit(exits.run(lambda: print(chr(26085))))"
    for redirection in (">&-", "2>&-", ">/dev/null"):
        environment = {**os.environ, "PYTHONPATH": os.getcwd(), "PYTHONIOENCODING": "ascii"}
        words = ["sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, program]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def parser() -> exits.Parser:
    parser = exits.Parser(prog="go")
    parser.add_argument("--workdir")
    job = parser.add_subparsers(required=True).add_parser("perplexity")
    job.add_argument("--lengths", type=int)
    return parser


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["perplexity", "--lenths", "3"],
            "--lenths: no such option; did you mean --lengths?",
        ),
        (["--work-dir=x", "perplexity"], "--work-dir: no such option; did you mean --workdir?"),
        (["perplexity", "--len", "3"], "unrecognized arguments: --len 3; see --help"),
        (["perplexity", "--lengths", "x"], "argument --lengths: invalid int value: 'x'; see --help"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_one(parser, words, line, capfd) -> None:
    assert exits.run(lambda: parser.parse_args(words) and 0) == 2
    assert capfd.readouterr().err == f"error: {line}\n"


def test_overrides_of_a_recipe_pass_through(parser: exits.Parser) -> None:
    overrides = ["--training.steps", "5", "--mesh.data", "-1", "--evaluation.lengths", "128", "256", "--seed=1"]
    known, rest = parser.parse_known_args(["--workdir", "x", "perplexity", *overrides])
    assert known.workdir == "x" and rest == overrides
