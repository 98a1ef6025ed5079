"""The figure of the index task, from the result files that `python -m eval index` writes."""

from collections.abc import Sequence

from rove_jax.analysis.picture import COLOURS, Picture
from rove_jax.errors import require

LISTED = "list"
"""Of the variants: the plain list, which is the paper's."""


def index_accuracy(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """Accuracy at the k-th element against the length of the prompt, with 95% intervals, of one or several runs."""
    picture = Picture(["the k-th element of a list"], size=(5.2, 3.8))
    style = 0
    for document, label in zip(documents, labels):
        require(document["kind"] == "index", "--results", document["kind"], "is no result of `python -m eval index`")
        for rule in dict.fromkeys(record["scaling"] for record in document["results"]):
            records = [r for r in document["results"] if r["variant"] == LISTED and r["scaling"] == rule]
            require(bool(records), "--results", label, "holds nothing of the variant list; name it in --variants")
            lengths, bounds = [r["length"] for r in records], list(zip(*(r["interval"] for r in records)))
            name = label if rule == "none" else f"{label}, {rule}"
            picture.line(0, name, lengths, [r["accuracy"] for r in records], style, marked=True)
            picture.axes[0].vlines(lengths, *bounds, color=COLOURS[style % len(COLOURS)], linewidth=1)
            for what, bound in zip(("lower", "upper"), bounds):
                picture.record(0, f"{name}, {what} 95%", lengths, bound)
            style += 1
    chance = documents[0]["results"][0]["chance"]
    picture.axes[0].axhline(chance, color="0.45", linewidth=1, linestyle=(0, (2, 2)), label="chance")
    picture.dress(0, "length of the prompt (tokens)", "accuracy", xscale="log", ylim=(0, 1.02))
    picture.caption(
        "the plain list (variant list); bars: 95%, Wilson's; frequencies unscaled where no scaling is named"
    )
    picture.tick(0, sorted({record["length"] for document in documents for record in document["results"]}))
    return picture
