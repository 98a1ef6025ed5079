"""The 22 tasks of DCLM's CORE: their files, shots, delimiters, and what guessing is taken to score.

From DCLM's `eval/additional_aggregation.json` (the set low_variance_datasets), its gauntlet's YAML, and both versions
of its `eval_meta_data` (2024 and September 2025). Rows and hashes are those of llm-foundry's `scripts/eval/local_data`.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["choice", "schema", "continuation"]
"""choice: one query, several answers. schema: several contexts, one continuation. continuation: one of each, and every
token of it must be the most likely one. The files' publishers say multiple_choice, schema and language_modeling."""
Baselines = Literal["v1", "v2"]

SPACE, ANSWER = " ", "\nAnswer: "


@dataclass(frozen=True)
class Task:
    """One line of the table."""

    label: str
    file: str
    kind: Kind
    shots: int
    delimiter: str
    """Between a context and its continuation."""
    choices: int
    """How many a row has; 0 for kind continuation."""
    v1: float
    """What is subtracted from the accuracy, in percent, in the first version of CORE, and in nanochat."""
    v2: float
    """The same since September 2025, where some are the share of the most frequent answer."""
    rows: int
    sha256: str | None
    """Of the published file; None where only its number of rows is known."""

    def baseline(self, baselines: Baselines) -> float:
        """The share of right answers that counts as none."""
        return (self.v1 if baselines == "v1" else self.v2) / 100

    @property
    def chance(self) -> float:
        """Expected accuracy of a uniform guess."""
        return 1 / self.choices if self.choices else 0.0


LANGUAGE = "language_understanding"
WORLD = "world_knowledge"
COMMON = "commonsense_reasoning"
SYMBOLS = "symbolic_problem_solving"
READING = "reading_comprehension"

# fmt: off
TASKS = (
    Task("hellaswag_zeroshot", f"{LANGUAGE}/hellaswag.jsonl", "choice",
         0, SPACE, 4, 25, 25, 10042, None),
    Task("jeopardy", f"{WORLD}/jeopardy_all.jsonl", "continuation",
         10, ANSWER, 0, 0, 0, 2117, "187e7f270a440c63d6cf11a57459fdc7e0bce889338225e42cc88e24ee13d52e"),
    Task("bigbench_qa_wikidata", f"{WORLD}/bigbench_qa_wikidata.jsonl", "continuation",
         10, SPACE, 0, 0, 0, 20321, "bb0d22727cb25beffb022c8e8c0c3e1159c8b3c7bd7284603c0d6491f8616265"),
    Task("arc_easy", f"{WORLD}/arc_easy.jsonl", "choice",
         10, ANSWER, 4, 25, 25, 2376, "d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5"),
    Task("arc_challenge", f"{WORLD}/arc_challenge.jsonl", "choice",
         10, ANSWER, 4, 25, 25, 1172, "1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636"),
    Task("copa", f"{COMMON}/copa.jsonl", "choice",
         0, SPACE, 2, 50, 50, 100, "595dca44dec54c849490bd403a3e24a29e3b944065783222ebb0eb1a55298846"),
    Task("commonsense_qa", f"{COMMON}/commonsense_qa.jsonl", "choice",
         10, SPACE, 4, 20, 40.3, 1221, "2771f63f8127c0725b1f6b0ef2cd2ef6469168ae5875fc8d276b25b4f32c8c1a"),
    Task("piqa", f"{COMMON}/piqa.jsonl", "choice",
         10, ANSWER, 2, 50, 50, 1838, "d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0"),
    Task("openbook_qa", f"{COMMON}/openbook_qa.jsonl", "choice",
         0, SPACE, 4, 25, 25, 500, "adb2e5c7f8db810ddad4d6b2bf53dcc86dcc545499f7aafcaf42a8e179476c09"),
    Task("lambada_openai", f"{LANGUAGE}/lambada_openai.jsonl", "continuation",
         0, SPACE, 0, 0, 0, 5153, "411bfbe5b9054346b6a19299c0242670adbefb9162efd958593cbc0290b8c9dc"),
    Task("hellaswag", f"{LANGUAGE}/hellaswag.jsonl", "choice",
         10, SPACE, 4, 25, 25, 10042, None),
    Task("winograd", f"{LANGUAGE}/winograd_wsc.jsonl", "schema",
         0, SPACE, 2, 50, 50, 273, "746336c27cd2e39a554cb1b8b4869d0f1ae2577ac5bfe799842d26bca5a5bf5e"),
    Task("winogrande", f"{LANGUAGE}/winogrande.jsonl", "schema",
         0, SPACE, 2, 50, 50, 1267, "ea1592526f3bfdd0948ed3acb1b4dfa3f83d23698917118688ee1df7f8d4b8d7"),
    Task("bigbench_dyck_languages", f"{SYMBOLS}/bigbench_dyck_languages.jsonl", "continuation",
         10, SPACE, 0, 0, 0, 1000, "106ba9ac7507c7ab385c5e59c49cd57aa83025abf080d9b2a2661c0d6c6dbcc5"),
    Task("agi_eval_lsat_ar", f"{SYMBOLS}/agi_eval_lsat_ar.jsonl", "choice",
         3, SPACE, 4, 20, 25, 230, "9ffd73480b51746c11627e56239f8b87035eb255cb92c3a58fd64e2e4b65fb56"),
    Task("bigbench_cs_algorithms", f"{SYMBOLS}/bigbench_cs_algorithms.jsonl", "continuation",
         10, SPACE, 0, 0, 0, 1320, "8485683a8c7e7e6c9fc6ca3cc81140fd85edb27f34406a6736d1539cf7ebcb3a"),
    Task("bigbench_operators", f"{SYMBOLS}/bigbench_operators.jsonl", "continuation",
         10, SPACE, 0, 0, 0, 210, "41e2964ad619c49edd97c22b2c50f922a0241255d906a754bf81a20f4f66b85f"),
    Task("bigbench_repeat_copy_logic", f"{SYMBOLS}/bigbench_repeat_copy_logic.jsonl", "continuation",
         10, SPACE, 0, 0, 0, 32, "8febd2c0080a15680cd17f92bfa30d87abcfac021e646e55d0b8ad69f0cfa767"),
    Task("squad", f"{READING}/squad.jsonl", "continuation",
         10, SPACE, 0, 0, 0, 10570, None),
    Task("coqa", f"{READING}/coqa.jsonl", "continuation",
         0, SPACE, 0, 0, 0, 7983, None),
    Task("boolq", f"{READING}/boolq.jsonl", "choice",
         10, ANSWER, 2, 62, 62, 3270, "454ff101e614370bb1807fe7ebbda6fdb57e794b9662cc1ccae211bf1ff626c8"),
    Task("bigbench_language_identification", f"{LANGUAGE}/bigbench_language_identification.jsonl", "choice",
         10, SPACE, 4, 9.1, 25, 10000, "80c98d8e7ab8213513d1643886229c05c40a6837353b07c19ac7bd860668954e"),
)
# fmt: on
"""In DCLM's order. HellaSwag counts twice, without shots and with ten."""
