"""Small tasks of lm_eval over made-up rows in local files, and what a model must score on them: nothing is fetched."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rove_jax.evaluation.harness import conformance
from rove_jax.evaluation.harness.adapter import Adapter
from rove_jax.evaluation.harness.evaluate import evaluate

CHOICES = [
    {"question": "The union was", "choices": [" founded", " found", " a state of the people"], "gold": 0},
    {"question": "Congress passed a law because the people", "choices": [" asked for it", " it rained"], "gold": 0},
    {"question": "Answer", "choices": ["ing", "s are kept", " it"], "gold": 1},
    {"question": "", "choices": ["Yes", "No"], "gold": 1},
]
"""They bring the space before them: where a task puts it, 0.5.0.dev1 counts it among the characters of a choice."""
LINES = [
    {"text": "The state of the", "last": " union"},
    {"text": "We the people of this great", "last": " nation and all of its laws"},
    {"text": "", "last": "Report"},
]
DOCUMENTS = [{"page": conformance.LONG}, {"page": "Short.\n\nTwo lines, \u00e9 and more."}]
NEW = 8


def write(folder: Path, name: str, rows: list[dict], **settings: Any) -> None:
    """A task with the rows it is about. JSON is YAML, as far as these go."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"data_files": {"validation": str(data)}, "cache_dir": str(folder / "cache")}
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": source, "validation_split": "validation"}
    (folder / f"{name}.yaml").write_text(json.dumps({**task, "num_fewshot": 0, **settings}, indent=1))


def metrics(*names: str) -> dict[str, Any]:
    """The setting of a task that asks for these."""
    return {"metric_list": [{"metric": name} for name in names]}


def write_tasks(folder: Path, generated: list[dict]) -> list[str]:
    """One task of each kind that lm_eval has; returns their names. `generated`: rows of `prompt` and `answer`."""
    folder = folder.resolve()
    write(
        folder,
        "rove_choice",
        CHOICES,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{gold}}",
        target_delimiter="",
        **metrics("acc", "acc_norm"),
    )
    line = {"output_type": "loglikelihood", "doc_to_text": "{{text}}", "doc_to_target": "{{last}}"}
    write(folder, "rove_last_word", LINES, **line, **metrics("perplexity", "acc"))
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{page}}"}
    names = ("word_perplexity", "byte_perplexity", "bits_per_byte")
    write(folder, "rove_pages", DOCUMENTS, **rolling, **metrics(*names))
    write(
        folder,
        "rove_text",
        generated,
        output_type="generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n\n\n"], "max_gen_toks": NEW, "do_sample": False},
        **metrics("exact_match"),
    )
    return ["rove_choice", "rove_last_word", "rove_pages", "rove_text"]


def local_tasks(make: Callable[..., Adapter], folder: Path) -> Iterator[conformance.Outcome]:
    """lm_eval's results on tasks written to `folder`, against forward passes. `make` gives instances of `RoveLM`."""
    lm = make(max_length=conformance.LIMIT)
    prompts = ["The union", "The people of the", "Congress"]
    asked = [conformance.request(prompt, {"max_gen_toks": NEW, "until": "\n\n\n"}) for prompt in prompts]
    texts = lm.generate_until(asked, disable_tqdm=True)
    rows = [{"prompt": prompt, "answer": text} for prompt, text in zip(prompts, texts)]
    rows[1]["answer"] += " not this"
    evaluated = evaluate(lm, write_tasks(folder, rows), include=folder, defaults=False)
    found = {} if evaluated is None else evaluated["results"]
    for task, expected in (
        ("rove_choice", choice(lm)),
        ("rove_last_word", last_word(lm)),
        ("rove_pages", pages(lm)),
        ("rove_text", {"exact_match": 2 / 3}),
    ):
        wrong = [
            f"{name} = {found[task][f'{name},none']:.6f} instead of {value:.6f}"
            for name, value in expected.items()
            if not np.isclose(found[task][f"{name},none"], value, rtol=1e-4)
        ]
        yield conformance.Outcome(f"lm_eval's {task}: {', '.join(expected)}", "; ".join(wrong))


def passed(lm: Adapter, context: str, continuation: str) -> tuple[float, bool]:
    """(ln p, greedy) by a forward pass."""
    return conformance.direct(lm, *lm.pair(context, continuation)[:2])


def choice(lm: Adapter) -> dict[str, float]:
    """Accuracy by the sum of ln p, and by that divided by the choice's characters."""
    right, right_by_length = [], []
    for row in CHOICES:
        totals = np.array([passed(lm, row["question"], one)[0] for one in row["choices"]])
        right.append(np.argmax(totals) == row["gold"])
        right_by_length.append(np.argmax(totals / [len(one) for one in row["choices"]]) == row["gold"])
    return {"acc": float(np.mean(right)), "acc_norm": float(np.mean(right_by_length))}


def last_word(lm: Adapter) -> dict[str, float]:
    """exp of the mean of -ln p of a continuation, and how often every token of it is the most likely one."""
    found = [passed(lm, row["text"], row["last"]) for row in LINES]
    return {
        "perplexity": float(np.exp(-np.mean([total for total, _ in found]))),
        "acc": float(np.mean([greedy for _, greedy in found])),
    }


def pages(lm: Adapter) -> dict[str, float]:
    """Perplexity by word (what white space splits) and by byte of UTF-8; bits per byte."""
    texts = [row["page"] for row in DOCUMENTS]
    total = sum(conformance.by_windows(lm, lm.tok_encode(text)) for text in texts)
    count = sum(len(text.encode()) for text in texts)
    return {
        "word_perplexity": float(np.exp(-total / sum(len(text.split()) for text in texts))),
        "byte_perplexity": float(np.exp(-total / count)),
        "bits_per_byte": -total / count / float(np.log(2)),
    }
