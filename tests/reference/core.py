"""How CORE's questions are asked and answered, step by step, from descriptions of nanochat and llm-foundry."""

import random

import numpy as np


def nanochat_draw(count: int, place: int, shots: int) -> list[int]:
    """Places in the shuffled file."""
    others = list(range(count))
    del others[place]
    return random.Random(1234 + place).sample(others, shots)


def nanochat(kind, delimiter, rows, place, shots, encode, eot):
    """(the row, [(tokens, start, end)] of each choice) of the example at `place` of the shuffled rows."""
    rows = list(rows)
    random.Random(1337).shuffle(rows)
    row = rows[place]
    text = ""
    for other in nanochat_draw(len(rows), place, shots):
        example = rows[other]
        if kind == "choice":
            text += example["query"] + delimiter + example["choices"][example["gold"]]
        elif kind == "schema":
            text += example["context_options"][example["gold"]] + delimiter + example["continuation"]
        else:
            text += example["context"].strip() + delimiter + example["continuation"]
        text += "\n\n"
    if kind == "continuation":
        without = [eot] + list(encode((text + row["context"].strip() + delimiter).strip()))
        whole = [eot] + list(encode(text + row["context"].strip() + delimiter + row["continuation"]))
        assert whole[: len(without)] == without
        return row, [(whole, len(without), len(whole))]
    if kind == "choice":
        all_tokens = [[eot] + list(encode(text + row["query"] + delimiter + choice)) for choice in row["choices"]]
        start = 0
        while all(start < len(t) for t in all_tokens) and len({t[start] for t in all_tokens}) == 1:
            start += 1
        return row, [(tokens, start, len(tokens)) for tokens in all_tokens]
    all_tokens = [
        [eot] + list(encode(text + context + delimiter + row["continuation"])) for context in row["context_options"]
    ]
    same = 0
    while all(same < len(t) for t in all_tokens) and len({t[len(t) - 1 - same] for t in all_tokens}) == 1:
        same += 1
    return row, [(tokens, len(tokens) - same, len(tokens)) for tokens in all_tokens]


def foundry(kind, delimiter, rows, shots, encode):
    """(the row, [(tokens, start, end)]) of each of the rows, one category's, in their order."""
    draw = random.Random(1234)
    rows = [{k: v.strip() if isinstance(v, str) else v for k, v in row.items()} for row in rows]
    for place, row in enumerate(rows):
        preamble = ""
        if shots:
            chosen = set(draw.sample(range(len(rows)), min(shots, len(rows) - 1)))
            if place in chosen:
                chosen.remove(place)
                if len(chosen) < len(rows) - 1:
                    new = draw.choice(range(len(rows)))
                    while new in chosen or new == place:
                        new = draw.choice(range(len(rows)))
                    chosen.add(new)
            for number, other in enumerate(chosen):
                example = rows[other]
                context = example["query"] if kind == "choice" else example.get("context")
                answer = example["choices"][example["gold"]] if kind == "choice" else example["continuation"]
                if kind == "schema":
                    context = example["context_options"][example["gold"]]
                preamble += ("\n" if number else "") + context + delimiter + answer
        if kind == "schema":
            pairs = [
                (context + (delimiter.rstrip() if preamble else ""), row["continuation"])
                for context in row["context_options"]
            ]
        elif kind == "choice":
            pairs = [((row["query"] + delimiter).rstrip(), choice) for choice in row["choices"]]
        else:
            pairs = [((row["context"] + delimiter).rstrip(), row["continuation"])]
        made = []
        for context, answer in pairs:
            before = list(encode(preamble)) + list(encode(("\n" if preamble else "") + context))
            after = list(encode(answer if answer.startswith(" ") else " " + answer))
            made.append((before + after, len(before), len(before) + len(after)))
        yield row, made


def losses(logits_tv: np.ndarray, tokens: list[int]) -> np.ndarray:
    """Nats of tokens[1:] under float64 logits after each of tokens[:-1]."""
    logits_tv = np.asarray(logits_tv, np.float64)
    top = logits_tv.max(axis=1, keepdims=True)
    log_p = logits_tv - top - np.log(np.exp(logits_tv - top).sum(axis=1, keepdims=True))
    return -np.array([log_p[place, token] for place, token in enumerate(tokens[1:])])


def answer(kind, prompts, logits):
    """(the choice, or whether all is greedy; the mean nats of each prompt). `logits`: of tokens, [T, V]."""
    means, greedy = [], []
    for tokens, start, end in prompts:
        rows = logits(tokens[:-1])
        means.append(float(np.mean(losses(rows, tokens)[start - 1 : end - 1])))
        greedy.append(all(int(np.argmax(rows[place - 1])) == tokens[place] for place in range(start, end)))
    return (greedy[0] if kind == "continuation" else means.index(min(means))), means
