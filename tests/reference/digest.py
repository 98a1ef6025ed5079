"""The digest of an array in plain NumPy, element by element as `rove_jax.training.checkpoints.digest` states it."""

import hashlib

import numpy as np

M32 = 2**32


def finalise(word: int) -> int:
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) % M32
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) % M32
    return word ^ (word >> 16)


def constants(name: str, dtype: str, shape: tuple[int, ...], lane: int) -> list[int]:
    """s, then an m for each axis."""
    text = f"{name} {dtype}{list(shape)} {lane}"
    drawn = hashlib.shake_256(text.encode()).digest(4 * (1 + len(shape)))
    words = [int.from_bytes(drawn[at : at + 4], "little") for at in range(0, len(drawn), 4)]
    return words[:1] + [word | 1 for word in words[1:]]


def digest(name: str, array: np.ndarray, dtype: str) -> str:
    """`dtype`: its name in jax, which NumPy may lack; the bits are those of `array`."""
    lanes = []
    for lane in range(2):
        s, *factors = constants(name, dtype, array.shape, lane)
        total = 0
        for index in np.ndindex(array.shape):
            raw = array[index].tobytes()
            words = [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]
            mixed = finalise(words[0] ^ s)
            for word in words[1:]:
                mixed = finalise((mixed + word) % M32)
            place = sum(i * m for i, m in zip(index, factors, strict=True))
            total += finalise((mixed + place) % M32)
        lanes.append(f"{total % M32:08x}")
    return "".join(lanes)
