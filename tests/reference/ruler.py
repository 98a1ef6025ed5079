"""RULER read by a person with a pencil: what each prompt asks for and what the answer is, from its text alone; and the
scores of answers in plain float64 Python. Shares nothing with the generators."""

import collections
import math
import re

NIAH = re.compile(r"One of the special magic (\w+) for (\S+) is: (\S+)\.(?=\s|$)")
SMALL_NIAH = re.compile(r"The magic (?:number|code) for (\S+) is (\w+)\.(?=\s|$)")


def listed(text: str) -> list[str]:
    """`a`, `a and b`, `a, b, and c` as a list."""
    return [part for part in re.split(r",\s*(?:and\s+)?|\s+and\s+", text) if part]


def niah(prompt: str) -> list[str]:
    """The values of the keys that the last line asks for, key after key, values in the order of the text, sorted."""
    last = prompt.rsplit("\n", 1)[1]
    asked = re.search(r"special magic \w+ for (.+?) mentioned in the provided text\?", last)
    if asked:
        kinds = {kind for kind, _, _ in NIAH.findall(prompt)}
        assert len(kinds) <= 1
        found = [(key, value) for _, key, value in NIAH.findall(prompt)]
    else:
        asked = re.fullmatch(r"The magic \w+ for (.+) (?:is|are)", last)
        found = SMALL_NIAH.findall(prompt)
    return [value for query in listed(asked[1]) for key, value in found if key == query]


def variables(prompt: str) -> list[str]:
    """The variables that have the value of the last question, along the chain."""
    text = prompt[prompt.rindex("Memorize and track") :] if "Memorize and track" in prompt else prompt
    query = re.findall(r"(?:assigned the value|with value) (\d{5})", text)[-1]
    value_of: dict[str, str] = {}
    for name, value in re.findall(r"^VAR ([A-Z]+) = (\d+|VAR [A-Z]+) ?$", text, re.M):
        assert name not in value_of
        value_of[name] = value if value.isdecimal() else value_of[value.split()[1]]
    return [name for name, value in value_of.items() if value == query]


def common(prompt: str, count: int) -> set[str]:
    """The most common words of the last list; fails if they are not `count` more common than all others."""
    text = prompt[prompt.rindex("Below is") :].split("\n")[1] if "Below is" in prompt else prompt.split("\n")[0]
    entries = re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", text)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    counts = collections.Counter(word for _, word in entries).most_common()
    assert counts[count - 1][1] > counts[count][1]
    return {word for word, _ in counts[:count]}


def coded(prompt: str) -> list[str]:
    """The three most frequent words but for dots, most frequent first; fails if two are equally frequent."""
    text = prompt.rsplit("\n", 1)[0].rsplit("coded words. ", 1)[-1]
    counts = [(word, n) for word, n in collections.Counter(text.split()).most_common() if set(word) != {"."}]
    numbers = [n for _, n in counts[:4]] + [0] * (4 - len(counts[:4]))
    assert len(set(numbers)) == 4
    return [word for word, _ in counts[:3]]


def made_up(prompt: str) -> str:
    """The answer to a question on a made-up person, by way of the town if a land is asked for."""
    kind, who = re.search(r"Question: (Where|In which land) was (.+) born\? Answer:$", prompt).groups()
    [town] = re.findall(rf"^{who} was born in (\w+)\.", prompt, re.M)
    if kind == "Where":
        return town
    [land] = set(re.findall(rf"^{town} is (?:a town )?in (\w+)\.", prompt, re.M))
    return land


def answer(task: str, prompt: str, count: int) -> object:
    """What is right, in a form that `given` brings an item's outputs to. `count`: how many outputs there are."""
    if task.startswith("niah"):
        return sorted(niah(prompt))
    if task.startswith("vt"):
        return variables(prompt)
    if task.startswith("cwe"):
        return common(prompt, count)
    if task.startswith("fwe"):
        return coded(prompt)
    return made_up(prompt)


def given(task: str, outputs: tuple[str, ...]) -> object:
    """An item's outputs in the form of `answer`."""
    if task.startswith("niah"):
        return sorted(outputs)
    if task.startswith("qa"):
        [only] = outputs
        return only
    return set(outputs) if task.startswith("cwe") else list(outputs)


def summary(answers: list[list[float]], texts: list[str], wrong: list[list[float]], floors: list[list[float]]) -> dict:
    """The headline numbers of samples from the nats of every token: of the answers, of wrong ones, without needle."""
    means = [math.fsum(nats) / len(nats) for nats in answers]
    count = len(means)
    mean = math.fsum(means) / count
    contrast = [math.fsum(nats) / len(nats) - good for nats, good in zip(wrong, means)]
    return {
        "samples": count,
        "nll": mean,
        "standard_error": math.sqrt(math.fsum((one - mean) ** 2 for one in means) / (count - 1) / count),
        "sample_nll": means,
        "token_nll": math.fsum(map(math.fsum, answers)) / sum(map(len, answers)),
        "character_nll": math.fsum(map(math.fsum, answers)) / sum(len(text) + 1 for text in texts),
        "contrast": math.fsum(contrast) / count,
        "floor_nll": math.fsum(math.fsum(nats) / len(nats) for nats in floors) / len(floors),
    }


def order_free(right: list[float], wrong: list[float]) -> tuple[float, float]:
    """(mean nats, mean rank) of each right part among itself and all the wrong ones, whose whole nats are given."""
    costs, ranks = [], []
    for nats in right:
        weights = [math.exp(-other) for other in [nats, *wrong]]
        costs.append(-math.log(weights[0] / math.fsum(weights)))
        ranks.append(1 + sorted([nats, *wrong]).index(nats))
    return math.fsum(costs) / len(costs), sum(ranks) / len(ranks)


def wilson(correct: int, count: int) -> tuple[float, float]:
    """The 95% interval of a share: the shares whose distance to it is z = 1.959964 of their own standard deviations,
    found by bisection on both sides."""

    def end(outside: float) -> float:
        share, inside = correct / count, correct / count
        for _ in range(200):
            middle = (inside + outside) / 2
            within = abs(share - middle) <= 1.959963984540054 * math.sqrt(middle * (1 - middle) / count)
            inside, outside = (middle, outside) if within else (inside, middle)
        return inside

    return end(0.0), end(1.0)


def newcombe(both: int, first: int, second: int, neither: int) -> tuple[float, float]:
    """The 95% interval of (share of the second - share of the first) of a two by two table of paired answers: Newcombe
    1998 (Statistics in Medicine 17, 2635-2650), method 10, written out as there, for first less second, and turned."""
    count = both + first + second + neither
    low_1, high_1 = wilson(both + first, count)
    low_2, high_2 = wilson(both + second, count)
    product = (both + first) * (second + neither) * (both + second) * (first + neither)
    if product == 0:
        phi = 0.0
    else:
        numerator: float = both * neither - first * second
        if numerator > count / 2:
            numerator -= count / 2
        elif numerator >= 0:
            numerator = 0
        phi = numerator / math.sqrt(product)
    p_1, p_2 = (both + first) / count, (both + second) / count
    theta = (first - second) / count
    delta = (p_1 - low_1) ** 2 - 2 * phi * (p_1 - low_1) * (high_2 - p_2) + (high_2 - p_2) ** 2
    epsilon = (high_1 - p_1) ** 2 - 2 * phi * (high_1 - p_1) * (p_2 - low_2) + (p_2 - low_2) ** 2
    lower, upper = theta - math.sqrt(delta), theta + math.sqrt(epsilon)
    return -upper, -lower
