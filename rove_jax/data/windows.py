"""How documents become windows of fixed length, and how a window's documents are told apart again."""

import numpy as np


def segments(tokens: np.ndarray, eot: int) -> tuple[np.ndarray, np.ndarray]:
    """Which document each token of a window belongs to, and where in that document it stands.

    tokens: integers [..., T]. Returns (segments, positions), both int32 [..., T]. Along the last axis

        segments[t]  = 1 + (how many of tokens[0 .. t-1] are `eot`)
        positions[t] = t - (1 + the last t' < t with tokens[t'] == eot), or t if there is none

    so ids start at 1 (0 is left for padding), an `eot` belongs to the document that it ends, and the token after it
    is position 0 of the next one. A document that began in an earlier window starts here at position 0.
    """
    tokens = np.asarray(tokens)
    ends = tokens[..., :-1] == eot
    first = np.zeros(tokens.shape[:-1] + (1,), bool) if tokens.shape[-1] else np.zeros(tokens.shape, bool)
    starts = np.concatenate([first, ends], axis=-1)
    index = np.arange(tokens.shape[-1], dtype=np.int32)
    ids = 1 + np.cumsum(starts, axis=-1, dtype=np.int32)
    return ids, index - np.maximum.accumulate(np.where(starts, index, np.int32(0)), axis=-1)


class Packer:
    """Joins the documents of one split and cuts the stream into windows of `context_length` + 1 tokens.

    Window k is stream[k L : k L + L + 1], so the last token of a window is the first of the next and every token but
    the stream's first is predicted exactly once. What does not fill a window at the end is dropped, and counted.
    """

    def __init__(self, context_length: int, dtype: np.dtype) -> None:
        self.context_length = context_length
        self.rest = np.zeros(0, dtype)
        self.tokens = 0
        """How many tokens went in, each document's end of text included."""
        self.windows = 0

    def add(self, document: np.ndarray) -> np.ndarray:
        """The windows [n, context_length + 1] that `document`, end of text included, completes; n may be 0."""
        length = self.context_length
        stream = np.concatenate([self.rest, document.astype(self.rest.dtype)])
        count = max(0, len(stream) - 1) // length
        self.tokens += len(document)
        self.windows += count
        self.rest = stream[count * length :].copy()
        if not count:
            return np.zeros((0, length + 1), stream.dtype)
        return np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length][:count]

    @property
    def dropped(self) -> int:
        """How many tokens at the end of the stream so far are in no window."""
        return self.tokens - (self.windows * self.context_length + 1) if self.windows else self.tokens
