"""Sentences unlike captions: names, possessives, questions, dates, emoji, sentences about nothing to be seen.

Captions are all alike: someone does something somewhere. A finder that has read nothing else takes every capital for
the beginning of a phrase and every noun for a thing. So some captions are changed, and their labels with them. The
words are drawn from a few lists: what is learnt is where such words stand, and their vectors carry it to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from phrasechain.core.schema import NOT_VISUAL
from phrasechain.phrases.finder import begin, inside, phrases_of
from phrasechain.training.finder.sentences import TaggedSentence, is_word, join


def _list(text: str) -> list[str]:
    """What stands between bars, or between the ends of lines."""
    return [item.strip() for line in text.strip().splitlines() for item in line.split("|")]


_FIRST_NAMES = _list("""
    Maria|John|Ahmed|Emily|Tom|Anna|Peter|Jane|Wei|Fatima|Carlos|Yuki|Olga|Ivan|Priya|Raj|Sarah|David|Michael
    Laura|Paul|Chloe|Pierre|Sofia|Lukas|Emma|Hans|Greta|Kofi|Amina|Omar|Leila|Juan|Elena|Marco|Giulia|Ben|Lisa
    Daniel|Julia|Kevin|Hannah|Samuel|Ruth|Isaac|Naomi|Oliver|Alice|Robert|Linda|James|Susan|Mark|Karen|Steve
    Nancy|George|Helen|Frank|Diana|Hiroshi|Mei|Sven|Ingrid|Pablo|Rosa|Diego|Lucia|Mohammed|Zara
""")
_LAST_NAMES = _list("""
    Smith|Garcia|Müller|Chen|Patel|Kim|Nguyen|Johnson|Rossi|Silva|Ivanov|Tanaka|Khan|Dubois|Novak|Jensen|Okafor
    Cohen|Lopez|Williams|Jones|Davis|Wilson|Taylor|Moore|Clark|Lewis|Young|Hill|Baker|Carter
""")
_REQUESTS = _list("""
    Where is|Where are|Is this|Is that|Is there|Are there|Can you see|Can you find|Could you point to|Do you see
    Did you notice|Who is next to|What is behind|What is that near|What color is|What colour are|How big is
    How old is|Why is there|Which one is|Have you seen|Does anyone know|What happened to|Is it
""")
_STATEMENTS = _list("""
    Find|Show|Show me|Look at|Point to|Please mark|Please find|Draw a box around|Press|Pull|Push|Open|Close|Take
    Move|Put down|Describe|Count|Ignore|Follow|Choose|Click on|Zoom in on|Crop|Remove|Turn left at|Go past
    Stop at|Wait for|Clean|Lift|Add|Watch|I see|I saw|We saw|I think this is|This is|That is|Here is|These are
    There is|There was|You can see|It shows|I love|We like|We stayed at|You need|They have|She said it was
    He told me about|Note|A close-up of|Close-up of|Closeup of|lol|Wow ,|So cute ,|Breaking :|Caption :
    Figure 3 :|Chapter 4 .|Example :|Note :|Step 2 :|Yes ,|No ,|Well ,|Thanks for|Happy birthday to
""")
_ASIDES = _list("""
    on DAY|last DAY|in MONTH|in YEAR|in MONTH YEAR|since YEAR|at HOUR pm|at HOUR o'clock|for HOUR hours
    for PRICE $|for $ PRICE|by HOUR %|yesterday|today|tomorrow|last week|next week|last year|next month
    two days ago|again|for the first time|as usual|of course|according to the NOUN|in general|for example
    because of the NOUN|despite the NOUN|without NOUN|I think|it seems
""")
_SENTENCES = _list("""
    NOUN needs NOUN .|NOUN is not NOUN .|The ADJECTIVE NOUN changed the NOUN .
    The NOUN of the NOUN was ADJECTIVE .|That is the NOUN .|It is a NOUN of NOUN .
    They decided to postpone the NOUN until next week .|The NOUN rose by HOUR % in YEAR , while NOUN fell .
    There is no NOUN without NOUN .|In YEAR the NOUN was ADJECTIVE .
    I do n't know why .|Nobody knew the NOUN .|It was raining , so we stayed home .|What is the NOUN ?
    According to the NOUN , NOUN is ADJECTIVE .|To be or not to be .
    Thank you for your NOUN !|He never spoke of his NOUN .|ADJECTIVE NOUN and ADJECTIVE NOUN
    The results of the NOUN are ADJECTIVE .|Please send us your NOUN by DAY .|It costs PRICE $ .
    NOUN : ADJECTIVE|See you on DAY !|We talked about NOUN , NOUN and NOUN .|She is HOUR years old .
    You are right .
""")
_WORDS = {
    "NOUN": _list("""
        democracy|patience|report|vote|decision|question|price|sales|costs|growth|law|idea|truth|theory|history
        time|money|meaning|reason|result|policy|freedom|hope|advice|news|problem|answer|interest|profit|tax
        budget|plan|method|rule|language|opinion|culture|justice|health|knowledge|memory|quality|weather|success
        failure|risk|trust|belief|research|economy|election|agreement|contract|service|strategy|experience|value
        version|software|account|password|name|week|information|progress|silence|courage|fear|grief|luck|power
        duty|chance|effort|debate|crisis
    """),
    "ADJECTIVE": _list("""
        quarterly|early|late|true|false|new|old|important|difficult|easy|political|economic|final|annual|wrong
        right|strange|clear|good|bad|better|possible|expensive|cheap|public|private|legal|modern|recent|common
    """),
    "DAY": _list("""
        Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday
    """),
    "MONTH": _list("""
        January|February|March|April|May|June|July|August|September|October|November|December
    """),
    "HOUR": [str(number) for number in range(1, 61)],
    "YEAR": [str(number) for number in range(1890, 2035)],
    "PRICE": _list("5|10|12.50|20|49.99|99|100|1,000|3.5"),
}
_ARTICLES = ("a", "an", "the")
_OWNERS = _list("my|my|our|our|your|his|her|their|this|that|these")
_ENDINGS = ("!", "!!", "!!!", "?", "???", "...", "…", ":)", ":(", ";", "-", "EMOJI", "EMOJI")
_EMOJI = (*range(0x1F300, 0x1F320), *range(0x1F330, 0x1F394), *range(0x1F400, 0x1F4FE), *range(0x1F600, 0x1F650))


def unlike_captions(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """The sentence, changed in one of the ways."""
    way = int(np.searchsorted(_UP_TO, rng.random(), side="right"))
    return list(WAYS.values())[way][1](sentence, rng)


def named(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """Someone in it has a name instead of a description."""
    people = [(first, end) for first, end, name in phrases_of(sentence.labels) if name == "people"]
    if not people:
        return sentence
    first, end = people[int(rng.integers(len(people)))]
    name = [_pick(_FIRST_NAMES, rng) if rng.random() < 0.8 else _made_up(rng)]
    if rng.random() < 0.5:
        name.append(_pick(_LAST_NAMES, rng) if rng.random() < 0.6 else _made_up(rng))
    labels = (begin("people"), *[inside("people")] * (len(name) - 1))
    return TaggedSentence(
        (*sentence.tokens[:first], *name, *sentence.tokens[end:]),
        (*sentence.labels[:first], *labels, *sentence.labels[end:]),
    )


def owned(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """Its things are someone's, or pointed at, as people write of their own photos."""
    tokens = list(sentence.tokens)
    for first, _, name in phrases_of(sentence.labels):
        if name != NOT_VISUAL and tokens[first].lower() in _ARTICLES and rng.random() < 0.7:
            owner = _pick(_OWNERS, rng)
            tokens[first] = owner.capitalize() if tokens[first][0].isupper() else owner
    return TaggedSentence(tuple(tokens), sentence.labels)


def requested(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """Its end, from one of the phrases on, after the words of a question, a request or a remark."""
    starts = [first for first, _, name in phrases_of(sentence.labels) if name != NOT_VISUAL]
    if not starts:
        return sentence
    rest = _from(sentence, starts[int(rng.integers(len(starts)))])
    asks = rng.random() < 0.4
    opening = _plain(_pick(_REQUESTS if asks else _STATEMENTS, rng), rng)
    return join([opening, _ending(rest, "?")]) if asks else join([opening, rest])


def with_aside(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """A date, a sum or a reason before it or at its end."""
    aside = _plain(_pick(_ASIDES, rng), rng)
    if rng.random() < 0.4:
        opening = TaggedSentence((aside.tokens[0].capitalize(), *aside.tokens[1:], ","), (*aside.labels, 0))
        return join([opening, _from(sentence, 0)])
    if is_word(sentence.tokens[-1]):
        return join([sentence, aside])
    return join([_part(sentence, 0, -1), aside, TaggedSentence(sentence.tokens[-1:], sentence.labels[-1:])])


def with_signs(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """Another end than a full stop, or emoji between phrases."""
    if rng.random() < 0.5:
        return _ending(sentence, _pick(_ENDINGS, rng).replace("EMOJI", _emoji(rng)))
    between = [place for place, label in enumerate((*sentence.labels, 0)) if label == 0 or label % 2]
    place = between[int(rng.integers(len(between)))]
    return join([_part(sentence, 0, place), TaggedSentence((_emoji(rng),), (0,)), _part(sentence, place, None)])


def beside_other_text(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """A sentence that names nothing to be seen, alone or before or after it."""
    other = _plain(_pick(_SENTENCES, rng), rng)
    other = TaggedSentence((other.tokens[0].capitalize(), *other.tokens[1:]), other.labels)
    return (other, join([other, sentence]), join([sentence, other]))[int(rng.integers(3))]


#: Ways of being unlike a caption, and how often each is taken.
WAYS: dict[str, tuple[float, Callable[[TaggedSentence, np.random.Generator], TaggedSentence]]] = {
    "named": (0.20, named),
    "owned": (0.15, owned),
    "requested": (0.25, requested),
    "aside": (0.12, with_aside),
    "signs": (0.13, with_signs),
    "beside other text": (0.15, beside_other_text),
}
_UP_TO = np.cumsum([share for share, _ in WAYS.values()])[:-1]


def _pick(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def _plain(pattern: str, rng: np.random.Generator) -> TaggedSentence:
    """The tokens of a pattern, none of them in a phrase."""
    tokens = tuple(_pick(_WORDS[token], rng) if token in _WORDS else token for token in pattern.split())
    return TaggedSentence(tokens, (0,) * len(tokens))


def _part(sentence: TaggedSentence, start: int, end: int | None) -> TaggedSentence:
    return TaggedSentence(sentence.tokens[start:end], sentence.labels[start:end])


def _from(sentence: TaggedSentence, start: int) -> TaggedSentence:
    """The sentence from a token on, which no longer begins a sentence."""
    return TaggedSentence((sentence.tokens[start].lower(), *sentence.tokens[start + 1 :]), sentence.labels[start:])


def _ending(sentence: TaggedSentence, sign: str) -> TaggedSentence:
    """The sentence with another sign at its end."""
    ended = not is_word(sentence.tokens[-1]) and sentence.labels[-1] == 0 and len(sentence.tokens) > 1
    return join([_part(sentence, 0, -1 if ended else None), TaggedSentence((sign,), (0,))])


def _emoji(rng: np.random.Generator) -> str:
    return "".join(chr(_EMOJI[int(rng.integers(len(_EMOJI)))]) for _ in range(int(rng.integers(1, 4))))


def _made_up(rng: np.random.Generator) -> str:
    """A name that nobody has."""
    syllables = (_pick("bcdfghjklmnprstvwyz", rng) + _pick("aeiou", rng) for _ in range(int(rng.integers(2, 4))))
    return "".join(syllables).capitalize() + _pick(("", "n", "s", "r", "k"), rng)
