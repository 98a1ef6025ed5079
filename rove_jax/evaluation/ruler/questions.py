"""Questions on documents: those that answer a question among others, from SQuAD, HotpotQA, or made up."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rove_jax.data.draws import Draw
from rove_jax.errors import UsageError
from rove_jax.evaluation.ruler.item import Document, Item, Material, Questions

TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {question} Answer:"
)
SMALL_TEMPLATE = "{context}\nQuestion: {question} Answer:"


@dataclass(frozen=True)
class Documents:
    """A task of this family. A unit is a document beside those that answer the question."""

    questions: str
    """Name of the set in `Material`."""
    small: bool = False
    """No instructions, and the documents without numbers."""
    tokens: int = 32
    least = 1

    def most(self, material: Material) -> int:
        """As many documents as the set has, but for the answering ones."""
        found = material.questions[self.questions]
        return len(found.documents) - max(len(one.gold) for one in found.asked)

    def item(self, material: Material, draw: Draw, index: int, units: int, length: int) -> Item:
        """See `Generator`. Questions are asked in their order, from the first again after the last."""
        found = material.questions[self.questions]
        one = found.asked[index % len(found.asked)]
        near = draw.shuffled(one.near)
        taken = {*one.gold, *one.near}
        far_draw = draw.apart("far")
        beside = near[:units]
        while len(beside) < units:  # one after another, so that more units keep the ones before
            place = far_draw.below(len(found.documents))
            if place not in taken:
                taken.add(place)
                beside.append(place)
        order = Draw(42).shuffled(range(len(one.gold) + units))  # RULER shuffles with one seed for all samples
        start = draw.below(len(found.asked))
        elsewhere = (text for other in found.asked[start:] + found.asked[:start] for text in other.answers)
        wrong = next((text for text in elsewhere if text not in one.answers), "none")
        places = [[*one.gold, *beside][place] for place in order]
        prompt = self.framed([found.documents[place] for place in places], one.question)
        return Item(
            prompt=prompt,
            outputs=one.answers,
            references=one.answers,
            distractor=wrong,
            present=wrong in prompt,
            floor=self.framed([found.documents[place] for place in places if place not in one.gold], one.question),
            depth=places.index(one.gold[0]) / len(places) if len(one.gold) == 1 else None,
        )

    def framed(self, documents: list[str], question: str) -> str:
        """The prompt."""
        if self.small:
            return SMALL_TEMPLATE.format(context="\n".join(documents), question=question)
        numbered = (f"Document {place + 1}:\n{text}" for place, text in enumerate(documents))
        return TEMPLATE.format(context="\n\n".join(numbered), question=question)


def squad(path: Path) -> Questions:
    """The questions of a SQuAD file (v1.1 or v2.0, as published) that have an answer."""

    def parse(content: Any) -> Questions:
        articles = [[part["context"] for part in article["paragraphs"]] for article in content["data"]]
        documents = sorted({text for texts in articles for text in texts})
        places = {text: place for place, text in enumerate(documents)}
        asked = []
        for article, texts in zip(content["data"], articles):
            for gold, paragraph in zip(texts, article["paragraphs"]):
                near = tuple(sorted({places[text] for text in texts} - {places[gold]}))
                for one in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(answer["text"] for answer in one["answers"]))
                    if answers and not one.get("is_impossible", False):
                        asked.append(Document(one["question"], answers, (places[gold],), near))
        return collected("squad", documents, asked)

    return read(path, "--squad", "SQuAD (data, paragraphs, context, qas, question, answers, text)", parse)


def hotpot(path: Path) -> Questions:
    """The questions of a HotpotQA file (distractor setting, as published)."""

    def parse(content: Any) -> Questions:
        texts = [{title: f"{title}\n{''.join(lines)}" for title, lines in one["context"]} for one in content]
        documents = sorted({text for part in texts for text in part.values()})
        places = {text: place for place, text in enumerate(documents)}
        asked = []
        for one, part in zip(content, texts):
            facts = {title for title, _ in one["supporting_facts"]}
            gold = tuple(places[text] for title, text in part.items() if title in facts)
            near = tuple(sorted({places[text] for text in part.values()} - set(gold)))
            if gold and one["answer"]:
                asked.append(Document(one["question"], (one["answer"],), gold, near))
        return collected("hotpotqa", documents, asked)

    return read(path, "--hotpotqa", "HotpotQA (a list of question, answer, context, supporting_facts)", parse)


def read(path: Path, option: str, form: str, parse: Callable[[Any], Questions]) -> Questions:
    """What `parse` makes of a JSON file. Raises `UsageError` where it is none of that form, or asks too little."""
    try:
        found = parse(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{option} = {str(path)!r}: {error.strerror}; give the file as published") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:100]
        raise UsageError(f"{option} = {str(path)!r}: is no file of {form}: {reason}") from error
    if len(found.asked) < 2 or len(found.documents) < 4:
        raise UsageError(
            f"{option} = {str(path)!r}: has {len(found.asked)} questions with an answer on {len(found.documents)} "
            "documents; needs 2 and 4"
        )
    return found


def collected(name: str, documents: list[str], asked: list[Document]) -> Questions:
    """A set of questions with its identity."""
    content = json.dumps([documents, [(one.question, one.answers, one.gold, one.near) for one in asked]])
    return Questions(name, tuple(documents), tuple(asked), hashlib.sha256(content.encode()).hexdigest())
