"""Windows: every token in the one place where it belongs, and documents told apart again."""

import numpy as np
import pytest
from reference import text as oracle

from rove_jax.data.windows import Packer, segments

EOT = 9


@pytest.mark.parametrize("length", [1, 2, 7, 16])
@pytest.mark.parametrize("sizes", [[40], [1, 1, 1, 1], [3, 0, 25, 6, 1, 13], [7, 7, 7], [6, 6], [1]])
def test_windows_are_the_stream_cut_with_stride_length(length, sizes):
    rng = np.random.default_rng(len(sizes) + length)
    documents = [rng.integers(0, EOT, size).tolist() for size in sizes]
    packer = Packer(length, np.dtype("<u2"))
    found = [packer.add(np.array([*document, EOT])) for document in documents]
    tokens = oracle.stream(documents, EOT)
    expected = oracle.windows(tokens, length)
    assert np.concatenate(found).tolist() == expected
    assert (packer.windows, packer.tokens) == (len(expected), len(tokens))
    assert packer.dropped == len(tokens) - (len(expected) * length + 1 if expected else 0)
    assert packer.dropped <= length
    # A window comes out with the document that completes it: nothing waits for the end.
    assert [len(part) for part in found] == np.diff(
        [0] + [len(oracle.windows(oracle.stream(documents[: n + 1], EOT), length)) for n in range(len(sizes))]
    ).tolist()


def test_windows_keep_their_content_when_the_packer_goes_on():
    packer = Packer(3, np.dtype("<u2"))
    first = packer.add(np.arange(8))
    before = first.copy()
    packer.add(np.arange(100, 120))
    assert (first == before).all()


@pytest.mark.parametrize(
    "tokens",
    [[1, 2, 3], [EOT], [EOT, EOT, EOT], [EOT, 1, 2], [1, 2, EOT], [1, EOT, EOT, 2, 3, EOT, 4], [5]],
)
def test_segments_of_cases_written_out(tokens):
    ids, positions = segments(np.array(tokens), EOT)
    assert (ids.tolist(), positions.tolist()) == oracle.segments(tokens, EOT)
    assert ids.dtype == positions.dtype == np.int32


def test_segments_of_a_batch_are_those_of_its_rows():
    tokens_bt = np.random.default_rng(0).integers(0, EOT + 1, (50, 33))
    ids_bt, positions_bt = segments(tokens_bt, EOT)
    for row, ids, positions in zip(tokens_bt, ids_bt, positions_bt):
        assert (ids.tolist(), positions.tolist()) == oracle.segments(row, EOT)
    assert ids_bt.min() == 1, "0 is padding"
    assert ids_bt.max() > 3, "the batch has document ends"


def test_the_end_of_text_belongs_to_the_document_it_ends():
    ids, positions = segments(np.array([4, EOT, 5]), EOT)
    assert ids.tolist() == [1, 1, 2]
    assert positions.tolist() == [0, 1, 0]


def test_no_tokens_have_no_segments():
    assert segments(np.zeros((2, 0), int), EOT)[0].shape == (2, 0)
