"""Tokenizers: what goes in comes out, ids are the ones that the merges say, and what is missing is said in one line."""

import json

import numpy as np
import pytest
from reference import text as oracle

from rove_jax.config import Data
from rove_jax.data import bpe, tokenizers
from rove_jax.errors import UsageError

MERGES = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b"a", b"n"), (b"an", b"d"), (b" ", b"a"), (b"h", b"e")]
TEXTS = [
    "",
    "the hen and the anther",
    " the\n\nthen  \t x",
    "caf\u00e9 \u65e5\u672c \U0001f54a",
    "<|endoftext|>",
    "a\r\nb\x00\x7f",
]


def written(byte: int) -> str:
    """GPT-2's files write visible bytes as themselves, and the others as U+0100, U+0101, ... in order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in visible else chr(256 + [b for b in range(256) if b not in visible].index(byte))


def spell(token: bytes) -> str:
    return "".join(map(written, token))


@pytest.fixture
def folder(tmp_path):
    """A vocabulary in GPT-2's form: the 256 bytes in its order, `MERGES`, and the end of text."""
    order = sorted(range(256), key=lambda byte: (ord(written(byte)) > 255, byte))
    tokens = [bytes([byte]) for byte in order] + [first + second for first, second in MERGES]
    encoder = {spell(token): id for id, token in enumerate(tokens)} | {"<|endoftext|>": len(tokens)}
    (tmp_path / "encoder.json").write_text(json.dumps(encoder))
    lines = ["#version: 0.2", *(f"{spell(first)} {spell(second)}" for first, second in MERGES), ""]
    (tmp_path / "vocab.bpe").write_text("\n".join(lines), "utf-8")
    return tmp_path


def gpt2(folder):
    return tokenizers.load(Data(tokenizer="gpt2", tokenizer_path=str(folder)))


def test_bytes_are_the_utf8_of_any_text():
    tokenizer = tokenizers.load(Data())
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000, 37)]))
    for text in [*TEXTS, everything]:
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert ids.tolist() == list(text.encode("utf-8"))
        assert tokenizer.decode(ids) == text
    assert (tokenizer.vocab, tokenizer.eot) == (257, 256)


def test_a_byte_text_without_utf8_still_encodes_and_a_cut_character_still_decodes():
    tokenizer = tokenizers.load(Data())
    assert tokenizer.encode("a\ud800b").tolist() == [97, 63, 98]
    assert tokenizer.decode_bytes([0xC3, 256, 97]) == b"\xc3a"
    assert tokenizer.decode([0xC3, 97]) == "\ufffda"


@pytest.mark.parametrize("id", [257, -1])
def test_an_id_that_does_not_exist_is_named(id):
    with pytest.raises(UsageError, match=f"token {id}: no such id; the tokenizer has 0 to 256"):
        tokenizers.load(Data()).decode([97, id])


def test_byte_pairs_are_merged_as_an_independent_loop_merges_them(folder):
    tokenizer = gpt2(folder)
    encoder = json.loads((folder / "encoder.json").read_text())
    for word in ["the", " the", "then", "anther", " and", "hhe", "aan", "\u00e9the", "x"]:
        expected = [encoder[spell(part)] for part in oracle.byte_pairs(word.encode(), MERGES)]
        assert tokenizer.encode(word).tolist() == expected, word
    assert tokenizer.encode("the hen").tolist() == [encoder[spell(part)] for part in (b"the", b" ", b"he", b"n")], (
        "words are split before pairs are merged, and ` hen` has no merge of its space"
    )
    assert (tokenizer.vocab, tokenizer.eot) == (256 + len(MERGES) + 1, 256 + len(MERGES))


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_gives_back_the_text_and_never_reads_a_special_token_in_it(folder, text):
    tokenizer = gpt2(folder)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.eot not in ids
    assert tokenizer.decode([*ids, tokenizer.eot]) == text
    assert tokenizer.decode_bytes(ids) == text.encode()


def test_identity_follows_the_content_of_the_files_and_not_their_place(folder, tmp_path_factory):
    first = gpt2(folder).identity
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("encoder.json", "vocab.bpe"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    assert gpt2(elsewhere).identity == first
    # The same files, one merge fewer: a reader that caches by path would not see it.
    encoder = json.loads((folder / "encoder.json").read_text())
    del encoder[spell(b"he")]
    encoder["<|endoftext|>"] -= 1
    (folder / "encoder.json").write_text(json.dumps(encoder))
    lines = (folder / "vocab.bpe").read_text("utf-8").splitlines()
    (folder / "vocab.bpe").write_text("\n".join(lines[:-1]), "utf-8")
    assert gpt2(folder).identity != first
    assert gpt2(folder).vocab == 256 + len(MERGES)


def test_files_that_do_not_belong_together_are_refused(folder):
    lines = (folder / "vocab.bpe").read_text("utf-8").splitlines()
    (folder / "vocab.bpe").write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]), "utf-8")
    with pytest.raises(UsageError, match="do not belong together"):
        gpt2(folder)


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("encoder.json", None, "No such file"),
        ("vocab.bpe", None, "No such file"),
        ("encoder.json", "{", "Expecting"),
        ("encoder.json", "{}", "GPT-2's form"),
        ("vocab.bpe", "one two three", "GPT-2's form"),
    ],
)
def test_what_is_wrong_with_the_folder_is_said(folder, name, content, says):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(UsageError, match=says) as caught:
        gpt2(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_without_cache_and_network_the_ways_out_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # the discard port: nothing listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="data.tokenizer_path.*encoder.json.*TIKTOKEN_CACHE_DIR") as caught:
        tokenizers.load(Data(tokenizer="gpt2"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("space", [" ", "\n", "\u00a0\t", "\u2003 ", "\x1c ", "\x85"])
def test_text_is_cut_only_where_its_tokens_are_cut(folder, space):
    """tiktoken splits the whole and the parts; least = 1 cuts at every run of spaces."""
    whole = bpe.from_folder(folder).encode_ordinary
    for n in (1, 2, 3, 7):
        text = f"{space * n}It's{space * n}2 the  end{space * n}!{space * n}he{space * n}"
        parts = tokenizers.cut(text, 1)
        assert "".join(parts) == text
        assert [id for part in parts for id in whole(part)] == whole(text)
    assert tokenizers.cut("a   b\n\nc d", 1) == ["a  ", " b\n", "\nc d"], "it does cut"


def test_a_million_spaces_are_no_obstacle(folder):
    tokenizer = gpt2(folder)
    text = "the" + " " * 1_000_000 + "end"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("")) == 0
