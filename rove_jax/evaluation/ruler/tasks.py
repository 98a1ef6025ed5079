"""The 13 tasks with their published parameters, and the small ones that take their place at shorter lengths."""

from dataclasses import dataclass

from rove_jax.evaluation.ruler.frequency import CodedWords, CommonWords
from rove_jax.evaluation.ruler.item import Generator
from rove_jax.evaluation.ruler.niah import Hay, Kind, Needles
from rove_jax.evaluation.ruler.questions import Documents
from rove_jax.evaluation.ruler.variables import Variables


@dataclass(frozen=True)
class Task:
    """One of the 13."""

    name: str
    group: str
    """What averages are taken over: NIAH, VT, CWE, FWE or QA."""
    published: Generator
    small: Generator
    """Fewer and smaller parts; as much room as the answer has, and no instructions."""
    essay: bool = False
    """Whether it needs prose."""


def needles(
    name: str, haystack: Hay, key: Kind = "words", value: Kind = "numbers", *, keys=1, values=1, queries=1
) -> Task:
    """A task of needles; its small form has at most two keys, values and queries."""
    keys = max(keys, queries)  # as RULER raises it
    published = Needles(haystack, key, value, keys, values, queries)
    small = Needles(haystack, key, value, min(keys, 2), min(values, 2), min(queries, 2), small=True, tokens=0)
    return Task(name, "NIAH", published, small, haystack == "essay")


ALL = (
    needles("niah_single_1", "noise"),
    needles("niah_single_2", "essay"),
    needles("niah_single_3", "essay", value="uuids"),
    needles("niah_multikey_1", "essay", keys=4),
    needles("niah_multikey_2", "needle"),
    needles("niah_multikey_3", "needle", key="uuids", value="uuids"),
    needles("niah_multivalue", "essay", values=4),
    needles("niah_multiquery", "essay", queries=4),
    Task("vt", "VT", Variables(), Variables(hops=2, small=True, tokens=0)),
    Task("cwe", "CWE", CommonWords(), CommonWords(common=2, small=True, tokens=0)),
    Task("fwe", "FWE", CodedWords(), CodedWords(small=True, tokens=0)),
    Task("qa_1", "QA", Documents("qa_1"), Documents("qa_1_small", small=True, tokens=0)),
    Task("qa_2", "QA", Documents("qa_2"), Documents("qa_2_small", small=True, tokens=0)),
)
NAMES = tuple(task.name for task in ALL)
GROUPS = ("NIAH", "VT", "CWE", "FWE", "QA")
