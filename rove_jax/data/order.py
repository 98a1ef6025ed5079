"""Which record comes when: a permutation of the records per epoch that is computed, never stored.

A Feistel network over pairs (left, right) with left < a, right < b is a bijection of [0, a b) whatever its round
function is; values outside [0, size) are sent round again until they fall inside, which makes it a bijection of
[0, size) (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", sections 3 and 4). It is written out here
because the order is part of a run's identity: no library's update may change it.
"""

import math

import numpy as np

ROUNDS = 8


def records(examples: np.ndarray, *, size: int, seed: int) -> np.ndarray:
    """The record of each example, int64, same shape.

    examples: integers >= 0, numbered from the start of the run; example e is place e % size of epoch e // size. Within
    an epoch every record 0 .. size - 1 comes once, in an order that depends on the epoch and on `seed` alone.
    """
    epochs, places = np.divmod(np.asarray(examples, np.int64), size)
    result = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        keys = np.random.SeedSequence([seed % 2**64, int(epoch)]).generate_state(ROUNDS, np.uint64)
        result[here] = permute(places[here].astype(np.uint64), size, keys).astype(np.int64)
    return result


def permute(places: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Where a bijection of [0, size), chosen by `keys` (uint64 [ROUNDS]), sends each of `places` (uint64)."""
    values = network(places, size, keys)
    while (outside := values >= size).any():
        values[outside] = network(values[outside], size, keys)
    return values


def network(values: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """A bijection of [0, a b), where a b >= size is as close to it as a square of side a allows. values: uint64."""
    a = np.uint64(math.isqrt(size - 1) + 1)
    b = np.uint64(-(-size // int(a)))
    left, right = np.divmod(values, b)
    for even, odd in keys.reshape(-1, 2):
        left = (left + mix(right + even) % a) % a
        right = (right + mix(left + odd) % b) % b
    return left * b + right


def mix(values: np.ndarray) -> np.ndarray:
    """Spreads every bit of a uint64 over all others: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
