"""Result files: whole or absent, read back as written, and found again only for the same checkpoint and settings."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from rove_jax import zoo
from rove_jax.config import Config
from rove_jax.data import tokenizers
from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation import results, runs
from rove_jax.evaluation.tables import number, table

PROVENANCE = {
    "step": 7,
    "config_hash": "c",
    "weights": "w",
    "data_fingerprint": "d",
    "tokenizer_identity": "t",
    "run": "r",
}
SETTINGS = {"lengths": (16, 32), "mode": "first_n"}


def written(path, provenance=PROVENANCE, settings=SETTINGS) -> dict:
    document = results.document("perplexity", provenance, settings, [{"nll": 1.5}])
    results.write(path, document)
    return document


def test_a_document_reads_back_and_names_what_made_it(tmp_path):
    document = written(tmp_path / "new" / "perplexity-a.json")
    assert results.read(tmp_path / "new" / "perplexity-a.json") == document
    assert document["settings"]["lengths"] == [16, 32]
    assert PROVENANCE.items() <= document["provenance"].items()
    assert {"versions", "device", "command", "created"} <= document["provenance"].keys()
    assert "jax" in document["provenance"]["versions"]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "out.json"
    written(path)
    before = path.read_text()
    with pytest.raises(RunError, match="out.json: not written, a number is not finite"):
        results.write(path, {"nll": float("nan")})
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]
    with pytest.raises(RunError, match="Not a directory|File exists"):
        results.write(path / "under" / "a_file.json", "")


def test_results_are_found_for_the_same_checkpoint_and_settings_only(tmp_path):
    document = written(tmp_path / "perplexity-a.json")
    written(tmp_path / "perplexity-b.json", settings={**SETTINGS, "mode": "sliding"})
    (tmp_path / "perplexity-0.json").write_text("cut sho")
    found = results.find(tmp_path, "perplexity", {**PROVENANCE, "run": "moved"}, SETTINGS)
    assert found == (document, tmp_path / "perplexity-a.json")
    assert results.find(tmp_path, "perplexity", PROVENANCE, {**SETTINGS, "lengths": (16,)}) is None
    for name in results.SAME:
        assert results.find(tmp_path, "perplexity", {**PROVENANCE, name: "other"}, SETTINGS) is None


def test_a_run_trained_again_with_the_same_config_is_another(monkeypatch):
    def opened(digest):
        identity = tokenizers.ByteTokenizer().identity
        metadata: dict[str, Any] = {"data_fingerprint": "d", "tokenizer_identity": identity}
        metadata["arrays"] = {"params": {"embedding": ["float32[2]", digest]}}
        monkeypatch.setattr(zoo, "load_model", lambda workdir, step: zoo.Loaded(Config(), {}, 7, metadata))
        return runs.open_run(Path("run")).provenance

    first, again = opened("a"), opened("b")
    assert [name for name in results.SAME if first[name] != again[name]] == ["weights"] and first == opened("a")


def test_what_is_no_result_file_is_refused(tmp_path):
    path = tmp_path / "x.json"
    bare = {"schema": 1, "kind": "index", "provenance": {}, "settings": {}, "results": 3}
    path.write_text(json.dumps(bare))
    with pytest.raises(UsageError, match="x.json: has no results; evaluate"):
        results.read(path)
    for content in ("{", "[]", json.dumps({"schema": 99})):
        path.write_text(content)
        with pytest.raises(UsageError, match="x.json: not a result file"):
            results.read(path)
    with pytest.raises(UsageError, match="y.json: no such file"):
        results.read(tmp_path / "y.json")
    with pytest.raises(UsageError, match=r"not a result file \(Is a directory\)"):
        results.read(tmp_path)


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out = .*cannot be written there"):
        results.check_writable(tmp_path / "file" / "out.json", "--out")
    with pytest.raises(UsageError, match="--out = .*is a folder"):
        results.check_writable(tmp_path, "--out")
    with pytest.raises(UsageError, match="a file lies where its folder would be"):
        results.check_writable(tmp_path / "file" / "out.json", "--out")
    results.check_writable(tmp_path / "new" / "out.json", "--out")
    for text, ours in (("", True), ('{\n "schema": 1, "ki', True), ('{"mine": 1}', False), ("hello", False)):
        (tmp_path / "out.json").write_text(text)
        with contextlib.nullcontext() if ours else pytest.raises(UsageError, match="no result of ours"):
            results.check_writable(tmp_path / "out.json", "--out")
        assert (tmp_path / "out.json").read_text() == text
    assert results.beside(tmp_path / "new" / "out.json", ".png", "--out", "figures") == tmp_path / "new" / "out.png"
    with pytest.raises(UsageError, match="--out = .*is where the figures go"):
        results.beside(tmp_path / "out.png", ".png", "--out", "figures")
    with pytest.raises(UsageError, match="cannot be written there"):
        results.beside(tmp_path / "file" / "out.json", ".png", "--out", "figures")
    with pytest.raises(UsageError, match=r"--out = '\.': is a folder"):
        results.beside(Path(), ".png", "--out", "figures")
    assert list((tmp_path / "new").iterdir()) == []
    monkeypatch.setattr(results, "is_writer", lambda: False)  # who writes nothing need not be able to
    assert results.beside(tmp_path / "file" / "out.json", ".png", "--out", "figures").name == "out.png"


def test_tables_are_aligned_markdown():
    lines = table(["context", "none"], [["128", number(3.14159)], ["16384", number(None)]]).splitlines()
    assert lines == ["| context |  none |", "|--------:|------:|", "|     128 | 3.142 |", "|   16384 |     - |"]
    assert number(123456.7) == "1.235e+05" and number(999.9994) == "999.999"
