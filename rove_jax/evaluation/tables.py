"""Tables that read as text in a terminal and as Markdown in a file."""

import math
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, columns padded to one width and set right, all but the first cell's text as given."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |" for row in (header, *rows)]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def number(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` decimals, fewer from 1000 on, a dash for None."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1000 or not math.isfinite(value) else f"{value:.4g}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign, none where it rounds to 0."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def counted(count: int, noun: str) -> str:
    """ "1 row", "2 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(interval: Sequence[float] | None, digits: int = 2) -> str:
    """The bounds of a 95% interval, as they stand behind a number; nothing where there is none."""
    if interval is None:
        return ""
    return f"[{number(interval[0], digits)}, {number(interval[1], digits)}]"


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def perplexity_table(document: dict) -> str:
    """Perplexity by context length with its 95% interval, if there is one: a row per length, a column per scaling, of
    whole windows and of their last tokens."""
    scalings = document["settings"]["scalings"]
    trained = document["provenance"]["training_length"]
    records = {(record["length"], record["scaling"]): record for record in document["results"]}
    lengths = list(dict.fromkeys(record["length"] for record in document["results"]))
    rows = [
        [str(length), f"{length / trained:g}x"]
        + [sure(records[length, rule]) for rule in scalings]
        + [sure(records[length, rule]["last"]) for rule in scalings]
        for length in lengths
    ]
    header = ["context", "of training", *scalings, *(f"{rule}, last" for rule in scalings)]
    return table(header, rows)


def sure(record: dict) -> str:
    """A perplexity with its 95% interval, which files of earlier versions and single documents lack."""
    return f"{number(record['perplexity'])} {span(record.get('interval'))}".strip()


def which_documents(settings: dict) -> str:
    """ "validation documents", and of which text if not the run's."""
    split = "documents" if settings["split"] == "all" else f"{settings['split']} documents"
    return split if settings["text"] is None else f"{split} of {settings['text']}"


def perplexity_caption(document: dict) -> str:
    """One paragraph that says what the numbers of `perplexity_table` are."""
    settings, provenance = document["settings"], document["provenance"]
    count = f"{len(document['results'][0]['documents'])} {which_documents(settings)}"
    text = {
        "same_text": f"the first {max(settings['lengths'])} tokens of {count}, in windows of each length",
        "first_n": f"as many first tokens of {count}",
        "nonoverlap": f"{count}, whole, in windows of each length",
        "sliding": f"{count}, whole, in sliding windows",
    }[settings["mode"]]
    return (
        f"Perplexity of {provenance['run']} at step {provenance['step']} by context length, tokens: "
        f"{provenance['tokenizer']}\n({text}; last: min(256, context / 2) tokens at the end of a window)"
        "\nIn brackets: 95% intervals, bootstrap over documents"
        f"{', of which one alone has none' if len(document['results'][0]['documents']) == 1 else ''}."
    )
