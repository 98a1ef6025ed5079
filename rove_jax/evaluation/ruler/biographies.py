"""Made-up people and places: stand-ins for SQuAD and HotpotQA, which cannot come with this project.

Their numbers compare models with each other and with nothing published.
"""

from rove_jax.data.draws import Draw
from rove_jax.evaluation.ruler.item import Document, Questions
from rove_jax.evaluation.ruler.questions import collected

PEOPLE = 1000
SYLLABLES = "ba bel dor fen gar hal jo kar lin mar nor pel ran sol tir ul ven wes yor zan".split()
TRADES = "baker carpenter clockmaker engraver gardener glazier miller potter printer surveyor tailor weaver".split()
FONDNESSES = ("chess", "fishing", "gardening", "music", "old maps", "painting", "rowing", "walking")


def names(draw: Draw, count: int, endings: list[str]) -> list[str]:
    """So many different names of two or three syllables."""
    found: dict[str, None] = {}
    while len(found) < count:
        stem = "".join(draw.choice(SYLLABLES) for _ in range(1 + draw.below(2)))
        found.setdefault((stem + draw.choice(endings)).capitalize())
    return list(found)


def one_document(*, small: bool) -> Questions:
    """Each question is answered by one document (in place of SQuAD)."""
    draw = Draw("biographies", 1)
    people, towns = everybody(draw, small), names(draw, 200, ["ton", "by", "ford", "stad"])
    homes = [draw.choice(towns) for _ in people]
    documents = [f"{who} was born in {home}.{'' if small else life(draw, who)}" for who, home in zip(people, homes)]
    asked = [
        Document(f"Where was {who} born?", (home,), (place,), ())
        for place, (who, home) in enumerate(zip(people, homes))
    ]
    return collected("standin_1_small" if small else "standin_1", documents, asked)


def two_documents(*, small: bool) -> Questions:
    """Each question needs two documents: where a person was born, and where that place is (in place of HotpotQA)."""
    draw = Draw("biographies", 2)
    people, towns = everybody(draw, small), names(draw, 200, ["ton", "by", "ford", "stad"])
    lands = names(draw, 60, ["mia", "land", "ria"])
    homes = [draw.below(len(towns)) for _ in people]
    where = [draw.choice(lands) for _ in towns]
    lives = [f"{who} was born in {towns[home]}.{'' if small else life(draw, who)}" for who, home in zip(people, homes)]
    places = [
        f"{town} is {'' if small else 'a town '}in {land}.{'' if small else describe(draw, town)}"
        for town, land in zip(towns, where)
    ]
    asked = [
        Document(f"In which land was {who} born?", (where[home],), (place, len(people) + home), ())
        for place, (who, home) in enumerate(zip(people, homes))
    ]
    return collected("standin_2_small" if small else "standin_2", lives + places, asked)


def everybody(draw: Draw, small: bool) -> list[str]:
    """A first and a last name for everybody, or a last name alone; no two the same."""
    last = names(draw, PEOPLE, ["er", "sen", "ow", "ard"])
    first = names(draw, 60, ["a", "e", "in", "o"])
    return last if small else [f"{draw.choice(first)} {name}" for name in last]


def life(draw: Draw, who: str) -> str:
    """What else a biography says."""
    name = who.split()[1]
    year, trade, fond = 1700 + draw.below(200), draw.choice(TRADES), draw.choice(FONDNESSES)
    return (
        f" The family had lived there since {year - 40 - draw.below(60)}. At the age of {14 + draw.below(6)} {name} "
        f"was apprenticed to a {trade}, and opened a shop in {year}. Letters from these years speak of {fond} and of "
        f"{2 + draw.below(6)} children, of whom {name} was proud. The shop was sold in {year + 20 + draw.below(20)}."
    )


def describe(draw: Draw, town: str) -> str:
    """What else is said of a town."""
    people, markets, year = f"{1 + draw.below(90)},{100 + draw.below(900)}", 2 + draw.below(5), 1500 + draw.below(300)
    return (
        f" It lies on a river and had {people} inhabitants at the last count. The market of {town} is held {markets} "
        f"times a year, and its bridge was built in {year}."
    )
