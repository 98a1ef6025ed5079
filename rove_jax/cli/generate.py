"""`python -m eval generate`: its arguments, and the job."""

import argparse
import codecs
import sys
from typing import get_args

from rove_jax.cli.arguments import add_run
from rove_jax.config import ScalingRule
from rove_jax.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a checkpoint, the prompt and how to draw."""
    add_run(parser)
    parser.add_argument("--prompt", required=True, help='text to continue; "" begins a document')
    parser.add_argument("--max-new-tokens", type=int, default=80, metavar="N", help="at most so many (default: 80)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the most likely token each time (default: 0.8)"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens (default: all)")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the fewest tokens of probability P together (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the draws; the same one gives the same text (default: 0)"
    )
    parser.add_argument(
        "--scaling",
        choices=get_args(ScalingRule),
        default="none",
        help="frequency scaling, as in perplexity at a length of the prompt and all new tokens (default: none)",
    )
    parser.add_argument("--value-scaling", choices=["same", "none"], default="same", help="as in perplexity")


def run(arguments: argparse.Namespace) -> None:
    """Print the prompt and its continuation, piece by piece as it is drawn."""
    from rove_jax.evaluation import runs
    from rove_jax.evaluation.generate import Sampling, generate
    from rove_jax.evaluation.protocol import scaled

    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
    if not 1 <= arguments.max_new_tokens <= 2**20:
        raise UsageError(
            f"--max-new-tokens = {arguments.max_new_tokens}: must lie between 1 and 2^20, the last position"
        )
    opened = runs.open_run(arguments.workdir, step=arguments.step)
    tokenizer = opened.tokenizer
    prompt = tokenizer.encode(arguments.prompt)
    trained = opened.config.data.context_length
    length = max(len(prompt), 1) + arguments.max_new_tokens
    sizes = f"{len(prompt)} + {arguments.max_new_tokens} tokens"
    if length > trained:
        print(f"note: {sizes} go past the training length, {trained}", file=sys.stderr)
    elif arguments.scaling != "none":
        print(f"note: {sizes} are within the training length, {trained}; nothing is scaled", file=sys.stderr)
    # A character may be spread over several tokens: the decoder holds its bytes back until it is whole.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def emit(tokens_b) -> None:
        if tokens_b[0] != tokenizer.eot:
            print(decoder.decode(tokenizer.decode_bytes(tokens_b)), end="", flush=True)

    print(tokenizer.decode(prompt), end="", flush=True)
    values = arguments.value_scaling == "same"
    generate(
        scaled(opened.config.model, arguments.scaling, training_length=trained, length=length, values=values),
        opened.params,
        [prompt],
        max_new_tokens=arguments.max_new_tokens,
        eot=tokenizer.eot,
        sampling=sampling,
        seeds=[arguments.seed],
        emit=emit,
    )
    print(decoder.decode(b"", final=True))
