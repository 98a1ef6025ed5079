"""What a finished training run shows: perplexity by context length, a sampled continuation, and where both are."""

import dataclasses
import time
from pathlib import Path

from rove_jax.evaluation import results
from rove_jax.evaluation.generate import Sampling, generate
from rove_jax.evaluation.protocol import Protocol
from rove_jax.evaluation.runs import FOLDER, Run, Step, default_protocol, open_data, open_run, stored_perplexity
from rove_jax.evaluation.tables import perplexity_caption, perplexity_table


def evaluate_run(workdir: str | Path, *, step: Step = "last") -> dict:
    """Evaluate the run in `workdir` as its config's `evaluation` part says, print it, and store it in the run folder.

    Returns:
        {"perplexity": the result document, None if no text is long enough; "sample": the prompt and its continuation;
        "files": paths of the run folder and of what was written to it or found in it}.
    """
    began = time.monotonic()
    run = open_run(Path(workdir), step=step)
    files = {"run": run.workdir}
    document, protocol = None, default_protocol(run.config)
    lengths = protocol.lengths if run.config.evaluation.lengths else reached(run, protocol)
    if lengths:
        document, files["perplexity"] = stored_perplexity(run, dataclasses.replace(protocol, lengths=lengths))
        print(f"\n{perplexity_caption(document)}\n\n{perplexity_table(document)}", flush=True)
    if lengths != protocol.lengths:
        print(f"\nNo {protocol.split} document has {max(protocol.lengths)} tokens: longer contexts are left out.")

    sample, count = sampled(run)
    files["sample"] = run.workdir / FOLDER / f"sample-{run.step}.txt"
    results.write(files["sample"], sample + "\n")
    print(f"\nA continuation, {count} tokens at temperature {run.config.evaluation.temperature:g}:\n\n{sample}\n")
    print(f"Evaluated in {time.monotonic() - began:.0f} s. Written:")
    for name, path in files.items():
        print(f"  {name:10}  {path}")
    return {"perplexity": document, "sample": sample, "files": [str(path) for path in files.values()]}


def reached(run: Run, protocol: Protocol) -> tuple[int, ...]:
    """Those of the protocol's lengths that some document has."""
    lengths = open_data(run).documents(protocol.split).lengths()
    longest = int(lengths.max(initial=0)) - (1 if protocol.prefix == "none" else 0)
    return tuple(length for length in protocol.lengths if length <= longest)


def sampled(run: Run) -> tuple[str, int]:
    """The config's prompt with its continuation, and how many tokens that has."""
    asked = run.config.evaluation
    [new] = generate(
        run.config.model,
        run.params,
        [run.tokenizer.encode(asked.prompt)],
        max_new_tokens=asked.max_new_tokens,
        eot=run.tokenizer.eot,
        sampling=Sampling(asked.temperature),
        seeds=[run.config.seed],
    )
    return asked.prompt + run.tokenizer.decode(new), len(new)
