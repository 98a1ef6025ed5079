"""Mixtures: each corpus has its share of every stretch of a run, and all of it is a pure function of (seed, step)."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
from reference import mixture as oracle

from rove_jax.cli import train as command
from rove_jax.config import Data, fingerprint
from rove_jax.data import build, mixture, order, pipeline, prepare, sources
from rove_jax.errors import UsageError

LENGTH = 8
SIZES = {"books": (320, 90), "code": (100, 50), "mail": (57, 41)}
"""Bytes of training and of validation text: 40, 12 and 7 windows; 11, 6 and 5."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Three prepared corpora, with letters of their own."""
    root = tmp_path_factory.mktemp("corpora")
    rng = np.random.default_rng(0)
    held_out = sources.hashed_out(["0.txt", "1.txt"])
    found = {}
    for name, letters in zip(SIZES, ("abcdefg", "hijklmn", "opqrstu")):
        (root / name).mkdir()
        for file in ("0.txt", "1.txt"):
            size = SIZES[name][file in held_out]
            (root / name / file).write_text("".join(rng.choice(list(letters), size)))
        data = Data(source="files", path=str(root / name), context_length=LENGTH)
        found[name] = root / f"{name}-prepared"
        build.dataset(sources.load(data), data, found[name], key=name)
    return found


def data_of(folders: dict[str, Path], *parts: str) -> Data:
    """The mixture of `books=0.5` and so on."""
    words = [part.split("=") for part in parts]
    return Data(context_length=LENGTH, mixture=tuple(f"{folders[name]}={weight}" for name, weight in words))


# Whose turn it is

WEIGHTS = [
    ["1"],
    ["0.5", "0.5"],
    ["0.7", "0.3"],
    ["0.999", "0.001"],
    ["0.2", "0.5", "0.3"],
    ["1", "1", "1"],
    ["0.001", "0.001", "0.998"],
    ["0.001", "0.002", "0.003", "0.994"],
    ["3", "1", "4", "1", "5", "9", "2", "6", "5", "3"],
    ["1"] * 10,
]


def normal(weights: list[str]) -> list[Fraction]:
    return [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]


@pytest.mark.parametrize("weights", WEIGHTS, ids=" ".join)
def test_turns_are_those_of_a_loop_and_every_corpus_keeps_its_share(weights):
    exact = normal(weights)
    whose, number = mixture.deal(np.arange(3000), exact)
    assert whose.tolist() == oracle.turns(3000, exact)
    far = 0.0
    for corpus, weight in enumerate(exact):
        mine = whose == corpus
        assert number[mine].tolist() == list(range(mine.sum())), "each has its own examples once, in order"
        far = max(far, np.abs(np.cumsum(mine) - np.arange(1, 3001) * float(weight)).max())
    assert far < (1 if len(weights) <= 3 else 1.5)
    for examples in (0, 1, 17, 3000):
        assert mixture.counts(examples, exact) == [int((whose[:examples] == n).sum()) for n in range(len(weights))]


def test_turns_far_into_a_run_are_exact():
    weights = normal(["0.333333", "0.666667"])
    start = 2**45 // 1_000_000 * 1_000_000
    whose, number = mixture.deal(start + np.arange(1000), weights)
    first, from_zero = mixture.deal(np.arange(1000), weights)
    assert (whose == first).all(), "a million examples are a period"
    assert (number - from_zero == np.where(whose == 0, start // 10**6 * 333_333, start // 10**6 * 666_667)).all()


# Batches


def example(windows, parts: list, seed: int, n: int, turns: list[int]) -> np.ndarray:
    """Example n of a mixture: as its corpus alone would deal its own next one."""
    corpus = turns[n]
    size = len(parts[corpus])
    place = order.records(np.array([turns[:n].count(corpus)]), size=size, seed=seed)[0]
    return parts[corpus][place]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_batches_are_the_same_for_any_number_of_processes_and_any_restart(folders, processes):
    data = data_of(folders, "books=0.25", "code=0.5", "mail=0.25")
    dataset = prepare.ensure(data)
    parts = [
        prepare.ensure(Data(context_length=LENGTH, prepared=str(folder))).windows("train")
        for folder in folders.values()
    ]
    turns = oracle.turns(160, [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)])
    for start in (0, 7):
        shares = [
            pipeline.batches(
                dataset, split="train", batch_size=8, seed=3, start_step=start, process_index=p, process_count=processes
            )
            for p in range(processes)
        ]
        for step in range(start, start + 10):
            batch = np.concatenate([next(share) for share in shares])
            assert (batch == pipeline.batch_at(dataset, split="train", batch_size=8, seed=3, step=step)).all()
            for row in range(8):
                assert (batch[row] == example(dataset, parts, 3, step * 8 + row, turns)).all()


def test_a_corpus_that_is_used_up_starts_its_next_epoch(folders):
    dataset = prepare.ensure(data_of(folders, "books=0.5", "mail=0.5"))
    mail = prepare.ensure(Data(context_length=LENGTH, prepared=str(folders["mail"]))).windows("train")
    rows = pipeline.batch_at(dataset, split="train", batch_size=4 * len(mail), seed=0, step=0)
    mine = [row for row in rows.tolist() if set(map(chr, row)) & set("opqrstu")]
    assert len(mine) == 2 * len(mail)
    assert sorted(mine) == sorted(2 * mail.rows(range(len(mail))).tolist()), "each window twice"
    assert mine[: len(mail)] != mine[len(mail) :]


def test_one_corpus_is_dealt_as_without_a_mixture(folders):
    alone = prepare.ensure(Data(context_length=LENGTH, prepared=str(folders["code"])))
    mixed = prepare.ensure(data_of(folders, "code=2"))
    for step in range(5):
        one, other = (pipeline.batch_at(d, split="train", batch_size=8, seed=1, step=step) for d in (alone, mixed))
        assert (one == other).all()


def test_validation_has_every_corpus_by_its_weight(folders):
    dataset = prepare.ensure(data_of(folders, "books=0.5", "code=0.3", "mail=0.2"))
    batches = list(pipeline.validation_batches(dataset, batch_size=4, tokens=10 * LENGTH))
    rows = np.concatenate([rows for rows, _ in batches])[np.concatenate([weights for _, weights in batches]) == 1]
    parts = [
        prepare.ensure(Data(context_length=LENGTH, prepared=str(f))).windows("validation") for f in folders.values()
    ]
    expected = [part.rows(np.arange(n) * len(part) // n) for part, n in zip(parts, (5, 3, 2))]
    assert (rows == np.concatenate(expected)).all()
    everything = list(pipeline.validation_batches(dataset, batch_size=4, tokens=10**6))
    assert sum(weights.sum() for _, weights in everything) == sum(map(len, parts)), "each window once"


def test_documents_are_those_of_all_corpora(folders):
    documents = prepare.ensure(data_of(folders, "books=0.5", "code=0.5")).documents("train")
    alone = [
        prepare.ensure(Data(context_length=LENGTH, prepared=str(folders[n]))).documents("train")
        for n in ("books", "code")
    ]
    assert len(documents) == 2
    assert documents.lengths().tolist() == [320, 100]
    assert [documents[n].tokens.tolist() for n in range(2)] == [one[0].tokens.tolist() for one in alone]
    for index in (2, -1):
        with pytest.raises(IndexError):
            documents[index]


def test_windows_outside_are_refused(folders):
    windows = prepare.ensure(data_of(folders, "books=0.5", "code=0.5")).windows("train")
    for index in (len(windows), -1):
        with pytest.raises(IndexError):
            windows.rows([0, index])


# What a mixture is


def test_the_fingerprint_follows_parts_order_and_weights_but_not_the_place(folders, tmp_path):
    def print_of(*parts, where=folders):
        return prepare.ensure(data_of(where, *parts)).fingerprint

    one = print_of("books=0.7", "code=0.3")
    assert print_of("books=7", "code=3.0") == one, "weights are what they are to each other"
    (tmp_path / "copy").symlink_to(folders["books"])
    assert print_of("books=0.7", "code=0.3", where={**folders, "books": tmp_path / "copy"}) == one
    others = [("books=0.6", "code=0.4"), ("code=0.3", "books=0.7"), ("books=0.7", "mail=0.3"), ("books=1",)]
    assert len({one, *(print_of(*parts) for parts in others)}) == 5


def test_about_says_how_often_each_corpus_is_read(folders):
    dataset = prepare.ensure(data_of(folders, "books=0.75", "mail=0.25"))
    said = dataset.about(160)
    assert f"0.75 of {folders['books']}: 1 documents" in said and "read 3 times" in said
    assert f"0.25 of {folders['mail']}: 1 documents" in said and "read 5.7 times" in said


@pytest.mark.parametrize(
    "parts, says",
    [
        (("a",), "data.mixture = 'a': each part must be a folder, = and a weight above 0"),
        (("=1",), "data.mixture = '=1': each part"),
        (("a=0",), "data.mixture = 'a=0': each part"),
        (("a=-1",), "data.mixture = 'a=-1': each part"),
        (("a=1", "a=2"), "data.mixture = 'a=2': names this folder twice"),
        (("/no/such/place=1",), "/no/such/place: no prepared dataset here"),
    ],
)
def test_what_is_wrong_with_a_mixture_is_said(parts, says):
    with pytest.raises(UsageError) as caught:
        prepare.ensure(Data(context_length=LENGTH, mixture=parts))
    assert str(caught.value).startswith(says)
    with pytest.raises(UsageError, match="data.mixture.*instead of data.prepared"):
        Data(mixture=("a=1",), prepared="b")


def test_corpora_that_do_not_fit_together_are_refused(folders, tmp_path):
    with pytest.raises(UsageError, match="data.context_length = 16: .* was prepared with 8"):
        prepare.ensure(Data(context_length=16, mixture=(f"{folders['books']}=1",)))
    for path in folders["code"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UsageError, match=f"{tmp_path} has the records of .*code"):
        prepare.ensure(Data(context_length=LENGTH, mixture=(f"{folders['code']}=1", f"{tmp_path}=1")))
    manifest = json.loads((tmp_path / "manifest.json").read_text()) | {"tokenizer_identity": "another"}
    del manifest["digest"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"digest": fingerprint(manifest)}))
    with pytest.raises(UsageError, match="prepared with another tokenizer than .*books"):
        prepare.ensure(data_of({**folders, "code": tmp_path}, "books=1", "code=1"))


# Training


@pytest.fixture(scope="module")
def run(folders, tmp_path_factory):
    """A run of six steps on a mixture, in one go, and the settings it had."""
    tiny_runs.keep_programs(tmp_path_factory)
    data = data_of(folders, "books=0.7", "code=0.3")
    cfg = tiny_runs.settings(data, training={"batch_size": 8, "validation_tokens": 5 * LENGTH})
    workdir = tmp_path_factory.mktemp("run") / "straight"
    tiny_runs.train(cfg, workdir)
    return cfg, workdir


@pytest.mark.slow
def test_a_run_on_a_mixture_goes_on_as_if_it_had_not_stopped(run, folders, tmp_path):
    cfg, straight = run
    tiny_runs.train(tiny_runs.changed(cfg, training={"stop_after": 3}), tmp_path / "run")
    moved = {}
    for name in ("books", "code"):
        moved[name] = tmp_path / name
        moved[name].symlink_to(folders[name])
    data = data_of(moved, "books=0.7", "code=0.3")
    tiny_runs.train(tiny_runs.settings(data, base=cfg), tmp_path / "run")
    columns = ("step", "loss", "validation_loss")
    assert tiny_runs.rows(tmp_path / "run", *columns) == tiny_runs.rows(straight, *columns)
    assert tiny_runs.differing(*(tiny_runs.arrays(cfg, folder, 6) for folder in (straight, tmp_path / "run"))) == set()
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["data_fingerprint"] == prepare.ensure(data).fingerprint


@pytest.mark.slow
def test_a_run_with_other_weights_is_another_run(run, folders, tmp_path):
    cfg, _ = run
    tiny_runs.train(tiny_runs.changed(cfg, training={"stop_after": 1}), tmp_path / "run")
    other = tiny_runs.settings(data_of(folders, "books=0.6", "code=0.4"), base=cfg)
    with pytest.raises(UsageError, match="data_fingerprint is .*, the run in .* was trained with"):
        tiny_runs.train(other, tmp_path / "run")


def test_a_dry_run_looks_for_the_folders_of_a_mixture(folders, checkout, capsys):
    words = ["--config", str(checkout / "configs" / "tiny_rove.py"), "--dry-run", "--data.context-length", str(LENGTH)]
    words += ["--data.mixture", f"{folders['books']}=0.5"]
    assert command.main([*words, f"{folders['code']}=0.5"]) == 0
    assert '"mixture": [' in capsys.readouterr().out
    assert command.main([*words, "/no/such/place=0.5"]) == 2
    assert "/no/such/place: no prepared dataset" in capsys.readouterr().err.splitlines()[-1]
