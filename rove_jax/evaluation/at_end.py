"""What a finished training run shows: perplexity by context length, a sampled continuation, and where both are."""

import time
from pathlib import Path

from rove_jax.evaluation import results
from rove_jax.evaluation.generate import Sampling, generate
from rove_jax.evaluation.runs import FOLDER, Step, default_protocol, open_run, stored_perplexity
from rove_jax.evaluation.tables import perplexity_caption, perplexity_table


def evaluate_run(workdir: str | Path, *, step: Step = "last") -> dict:
    """Evaluate the run in `workdir` as its config's `evaluation` part says, print it, and store it in the run folder.

    Returns:
        {"perplexity": the result document, "sample": the continuation, "files": [paths written or found]}.
    """
    began = time.monotonic()
    run = open_run(Path(workdir), step=step)
    asked = run.config.evaluation
    document, measured_in = stored_perplexity(run, default_protocol(run.config))
    print()
    print(perplexity_caption(document))
    print()
    print(perplexity_table(document), flush=True)

    [new] = generate(
        run.config.model,
        run.params,
        [run.tokenizer.encode(asked.prompt)],
        max_new_tokens=asked.max_new_tokens,
        eot=run.tokenizer.eot,
        sampling=Sampling(asked.temperature),
        seeds=[run.config.seed],
    )
    sample = asked.prompt + run.tokenizer.decode(new)
    print(f"\nA continuation, {len(new)} tokens at temperature {asked.temperature:g}:\n\n{sample}\n")
    sampled_in = run.workdir / FOLDER / f"sample-{run.step}.txt"
    results.write(sampled_in, sample + "\n")
    print(f"Evaluated in {time.monotonic() - began:.0f} s. Written:")
    files = [run.workdir, measured_in, sampled_in]
    for name, path in zip(("run", "perplexity", "sample"), files):
        print(f"  {name:10}  {path}")
    return {"perplexity": document, "sample": sample, "files": [str(path) for path in files]}
