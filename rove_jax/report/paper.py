"""What the paper of RoVE (arXiv 2606.11275) reports in its Tables 1 to 4, as far as it could be learnt.

The tables themselves were not at hand: the numbers come from one digest of the paper written by somebody else
(katgpt-rs, Research 452), and no second copy was found. They agree with each other and with the paper's text (64% lower
perplexity at 16,384 tokens; RULER 6.62 to 4.33), so: medium certainty. What is not known is None.
"""

from typing import NamedTuple

CERTAINTY = (
    "The paper's (arXiv 2606.11275): from a digest by others, not from its tables; consistent with its text; medium "
    "certainty. GPT-2 tokens, models trained on 1,024 of them."
)


def printed(value: float | None, digits: int = 2) -> str:
    """A number as the paper prints it."""
    return "-" if value is None else f"{value:.{digits}f}"


class Published(NamedTuple):
    """One line of the paper's tables."""

    scale: str
    method: str
    core: float | None
    perplexity: dict[int, float]
    """By context length in tokens."""


CORE_AND_PERPLEXITY = (
    Published("124M", "RoPE", 0.1375, {512: 25.23, 1024: 22.37}),
    Published("124M", "RoVE", 0.1416, {512: 25.05, 1024: 22.30}),
    Published(
        "354M",
        "RoPE",
        0.1664,
        {512: 17.68, 1024: 15.64, 2048: 293.24, 4096: 840.10, 8192: 1412.76, 16384: 1630.72},
    ),
    Published(
        "354M", "RoVE", 0.1856, {512: 17.52, 1024: 15.52, 2048: 133.68, 4096: 311.38, 8192: 458.15, 16384: 583.84}
    ),
    Published("354M", "RoPE, YaRN", 0.1664, {2048: 16.05, 4096: 48.61, 8192: 154.61, 16384: 270.98}),
    Published("354M", "RoVE, YaRN", 0.1856, {2048: 15.78, 4096: 18.40, 8192: 35.95, 16384: 124.82}),
)
"""Table 3 (124M) and Table 1 (354M)."""

RULER = {
    "354M RoPE, YaRN": {"CWE": 4.31, "NIAH": 7.61, "QA": 6.40, "VT": 4.53},
    "354M RoVE, YaRN": {"CWE": 4.39, "NIAH": 3.63, "QA": 5.61, "VT": 2.11},
}
"""Of Table 2: nats per token of the answer at 4,096 tokens. NIAH may be one of its tasks, the one of several keys."""

RULER_MEAN = {"354M RoPE, YaRN": 6.62, "354M RoVE, YaRN": 4.33}
"""Their means, over what is not known: those of the four numbers above are 5.71 and 3.94."""
