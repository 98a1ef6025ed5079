"""Results of two made-up runs, by every evaluation, whose numbers can be told in the head."""

from test_report import document as perplexity

from rove_jax.report.cells import Result, Results


def of(variant: str, kind: str, results: list, **settings) -> dict:
    return {**perplexity(variant, 0.0), "kind": kind, "settings": settings, "results": results}


def core(variant: str, right: float, labels=("copa", "piqa")) -> dict:
    tasks = [
        {
            "task": label,
            "examples": 4,
            "accuracy": right,
            "interval": [right - 0.25, right + 0.2],
            "centered": {"v1": 2 * right - 1, "v2": 2 * right - 1},
            "outcomes": {"": "1" * int(4 * right) + "0" * (4 - int(4 * right))},
            "file": {"unlike": ""},
            "overlong": 1,
            "truncated": 0,
            "unlike": [],
            "odd": [],
            "ties": 0,
        }
        for label in labels
    ]
    record = {"core_partial": 2 * right - 1, "baselines": "v1", "tasks": tasks, "missing": [], "not_asked": []}
    record["by_baselines"] = {"v1": {"interval": [2 * right - 1.2, 2 * right - 0.9]}}
    return of(variant, "core", [record], protocol="nanochat", overlong="truncate", max_examples=4)


def ruler(variant: str, nll: float, lengths=(512, 4096)) -> dict:
    rows = [
        {
            "published_task": task,
            "group": group,
            "length": length,
            "scaling": "none",
            "form": "small" if length == 512 else "published",
            "questions": None,
            "samples": 5,
            "match": 0.5 if task == "vt" else 0.4,
            "nll": nll + length / 1000 + place,
            "interval": [nll + length / 1000 + place - 0.5, nll + length / 1000 + place + 0.5],
            "sample_nll": [nll + length / 1000 + place + away for away in (-0.4, -0.2, 0.0, 0.2, 0.4)],
        }
        for length in lengths
        for place, (task, group) in enumerate([("niah_single_1", "NIAH"), ("niah_single_2", "NIAH"), ("vt", "VT")])
    ]
    return of(variant, "ruler", rows, lengths=list(lengths), scalings=["none"], samples=5, texts={})


def index(variant: str, accuracy: float) -> dict:
    row = {"variant": "list", "length": 64, "scaling": "none", "accuracy": accuracy, "interval": [0.1, 0.9]}
    right = int(8 * accuracy)
    row |= {"chance": 0.25, "answers": [1] * 8, "places": list(range(8)), "picked": [1] * right + [0] * (8 - right)}
    return of(variant, "index", [row], samples=8)


def two_runs() -> Results:
    """RoPE and RoVE with every evaluation."""
    made = {}
    for name, variant, better in (("1_a", "rope", 0.0), ("2_b", "rove", 0.25)):
        documents = {
            "perplexity": perplexity(variant, -better),
            "core": core(variant, 0.5 + better),
            "ruler": ruler(variant, 3.0 - better),
            "index": index(variant, 0.25 + better),
        }
        made[name] = {kind: Result(d, f"results/{name}/{kind}.json") for kind, d in documents.items()}
    return made
