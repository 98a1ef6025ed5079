"""Windows, documents and scalings of a perplexity measurement."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rove_jax.config import Data, Model, Rotary, Scaling
from rove_jax.data import tokenizers
from rove_jax.data.prepared import Document, Documents
from rove_jax.errors import UsageError
from rove_jax.evaluation import runs
from rove_jax.evaluation.protocol import Protocol, Together, choose, scaled, sequences, windows

EOT = 256


def sliding(length: int, stride: int, **fields) -> Protocol:
    return Protocol((length,), mode="sliding", stride=stride, **fields)


def test_windows_are_those_of_the_yarn_script():
    """Its L counts the token before the window, so its 256 is 255 here."""
    found = windows(1000, 255, sliding(255, 64))
    assert len(found) == 13
    assert found[:2] == [(0, 255, 255), (64, 319, 64)] and found[-1] == (768, 1000, 41)
    found = windows(16384, 1023, sliding(1023, 256))
    assert len(found) == 62 and found[-1].scored == 1
    assert len(windows(16384, 4095, sliding(4095, 256))) == 50


@pytest.mark.parametrize("mode", ["nonoverlap", "sliding"])
@pytest.mark.parametrize("prefix", ["document", "window", "none"])
def test_every_token_is_scored_once(mode, prefix):
    for count in (1, 2, 15, 16, 17, 33, 100):
        tokens = np.arange(count + 1)
        parts = sequences(tokens, 16, Protocol((16,), mode=mode, prefix=prefix), EOT)
        targets = np.concatenate([row[-window.scored :] for window, row in parts])
        np.testing.assert_array_equal(targets, tokens[1:] if prefix == "none" else tokens)


def test_same_text_scores_the_same_tokens_at_every_length():
    protocol = Protocol((8, 64, 48))
    tokens = np.arange(100)
    for length in protocol.lengths:
        parts = sequences(tokens, length, protocol, EOT)
        assert len(parts) == -(-64 // length)
        np.testing.assert_array_equal(np.concatenate([row[1:] for _, row in parts]), tokens[:64])
    [(window, row)] = sequences(tokens, 8, Protocol((8, 64), mode="first_n"), EOT)
    assert window == (0, 8, 8) and row.tolist() == [EOT, *range(8)]


def test_prefix_decides_what_stands_before_a_window():
    tokens = np.arange(40)
    firsts = {
        prefix: [
            int(row[0]) for _, row in sequences(tokens, 16, Protocol((16,), mode="nonoverlap", prefix=prefix), EOT)
        ]
        for prefix in ("document", "window", "none")
    }
    assert firsts == {"document": [EOT, 15, 31], "window": [EOT, EOT, EOT], "none": [0, 16, 32]}


def test_all_lengths_and_models_read_the_same_documents():
    lengths = [50, 8, 70, 64, 65, 12, 90, 64, 200, 63]
    documents = [Document(str(place), np.zeros(n, int)) for place, n in enumerate(lengths)]
    chosen = choose(documents, Protocol((16, 64), documents=3))
    assert len(chosen) == 3 and all(len(document.tokens) >= 64 for document in chosen)
    more = choose(documents, Protocol((64, 16), documents=5))
    assert {d.id for d in chosen} < {d.id for d in more}, "asking for more keeps the ones chosen before"
    assert [d.id for d in more] == sorted((d.id for d in more), key=int)
    # Without a token before the document, T scored tokens take T + 1.
    assert {len(d.tokens) for d in choose(documents, Protocol((64,), documents=9, prefix="none"))} == {65, 70, 90, 200}
    with pytest.raises(UsageError, match="no validation document has 201 tokens .*longest has 200"):
        choose(documents, Protocol((201,)))


def test_scaling_acts_only_beyond_the_training_length():
    cfg = Model()
    for rule in ("none", "linear", "ntk", "dynamic_ntk", "yarn", "llama3"):
        assert scaled(cfg, rule, training_length=128, length=128) is cfg
        assert scaled(cfg, rule, training_length=128, length=96) is cfg
    assert scaled(cfg, "none", training_length=128, length=512) is cfg
    yarn = scaled(cfg, "yarn", training_length=128, length=512)
    assert yarn.rotary.scaling == Scaling("yarn", factor=4.0, original_length=128)
    assert yarn.rotations[1] == yarn.rotary, "values are scaled with queries and keys"
    dynamic = scaled(cfg, "dynamic_ntk", training_length=128, length=512)
    assert dynamic.rotary.scaling == Scaling("dynamic_ntk", original_length=128, length=512)


def test_a_scaling_from_training_is_not_replaced():
    trained = replace(Model(), rotary=Rotary(scaling=Scaling("linear", factor=2.0)))
    assert scaled(trained, "none", training_length=128, length=512) is trained
    with pytest.raises(UsageError, match="scaling = 'yarn': the model was trained with linear"):
        scaled(trained, "yarn", training_length=128, length=512)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": (1,)}, "lengths = 1"),
        ({"lengths": (64, 64)}, "lengths .*differ"),
        ({"lengths": (64,), "scalings": ("yarm",)}, "did you mean yarn"),
        ({"lengths": (64,), "stride": 16}, "stride = 16: is read by mode sliding only"),
        (
            {"lengths": (64, 32), "mode": "sliding", "stride": 48},
            "stride = 48: must be from 1 to the shortest length, 32",
        ),
        ({"lengths": (64,), "documents": 0}, "documents = 0"),
    ],
)
def test_wrong_protocols_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        Protocol(**fields)


class Split(Documents):
    """Some documents in memory, as a prepared split has them."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, place: int) -> Document:
        return Document(f"{self.sizes[place]}", np.arange(self.sizes[place]))

    def lengths(self) -> list[int]:
        return self.sizes


def test_all_splits_together_are_one_list():
    both = Together(Split([5, 40, 6]), Split([50, 7]))
    assert both.lengths() == [5, 40, 6, 50, 7]
    assert [both[place].id for place in range(5)] == ["5", "40", "6", "50", "7"]
    with pytest.raises(IndexError):
        both[5]
    assert [d.id for d in choose(both, Protocol((30,), split="all"))] == ["40", "50"]
    with pytest.raises(UsageError, match="no books document has 60 tokens .the longest has 50"):
        choose(both, Protocol((60,), split="all", text="books"))


def test_other_text_than_the_runs_is_found_by_what_it_is(tmp_path):
    """In the tokens of the run, whatever context length it was prepared for; changed text is another text."""
    config = SimpleNamespace(data=Data(context_length=8, cache=str(tmp_path / "cache")))
    run = SimpleNamespace(config=config, tokenizer=tokenizers.ByteTokenizer())
    books = tmp_path / "books"
    books.mkdir()
    for place in range(4):
        (books / f"{place}.txt").write_text(f"book {place} " * 20)
    protocol = Protocol((32,), text=str(books), split=runs.default_split(str(books)))
    found, fingerprint = runs.documents_of(run, protocol)
    assert protocol.split == "all" and len(found) == 4
    assert runs.settings_of(protocol, fingerprint)["text_fingerprint"] == fingerprint
    assert "text_fingerprint" not in runs.settings_of(Protocol((32,)), "")

    folder = runs.open_text(run, str(books)).path
    assert runs.default_split(str(folder)) == "validation"
    run.config.data = Data(context_length=16, cache=str(tmp_path / "cache"))
    again, same = runs.documents_of(run, Protocol((32,), text=str(folder), split="all"))
    assert same == fingerprint and [d.id for d in again] == [d.id for d in found]

    (books / "0.txt").write_text("another book " * 20)
    assert runs.documents_of(run, protocol)[1] != fingerprint
    short = tmp_path / "short.txt"
    short.write_text("a few words")
    with pytest.raises(
        UsageError, match=r"lengths = 32: no .*short.txt document has 32 tokens .*choose shorter lengths"
    ):
        runs.documents_of(run, Protocol((32,), text=str(short), split="all"))
    with pytest.raises(UsageError, match="no such file or folder"):
        runs.open_text(run, str(tmp_path / "none"))


def test_a_single_file_is_one_document(tmp_path):
    """Also alone in a folder; for training its end is held out, and one may ask for that."""
    config = SimpleNamespace(data=Data(context_length=8, cache=str(tmp_path / "cache")))
    run, path = SimpleNamespace(config=config, tokenizer=tokenizers.ByteTokenizer()), tmp_path / "text" / "book.txt"
    path.parent.mkdir()
    path.write_text(text := "a line of a book\n" * 40)
    for name in (path, path.parent):
        [document], fingerprint = runs.documents_of(run, Protocol((512,), text=str(name), split="all"))
        assert document.id == "book.txt" and bytes(document.tokens.tolist()).decode() == text
    [part], other = runs.documents_of(run, Protocol((32,), text=str(path), split="validation"))
    assert text.endswith(bytes(part.tokens.tolist()).decode()) and len(part.tokens) < 100 and other != fingerprint
