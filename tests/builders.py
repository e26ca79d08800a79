"""Small annotated images for tests, made of words."""

from phrasechain.schema import Box, Caption, Example, Phrase


def make_caption(index: int, *phrases: tuple[str, str | None, tuple[str, ...], tuple[Box, ...] | None]) -> Caption:
    """A caption "and"-ing phrases, each given as text, entity, categories, boxes."""
    tokens: list[str] = []
    made = []
    for text, entity, categories, boxes in phrases:
        tokens += ["and"] if tokens else []
        first, start = len(tokens), len(" ".join([*tokens, ""]))
        tokens += text.split()
        made.append(Phrase(text, start, start + len(text), first, len(tokens), entity, categories, boxes))
    return Caption(index, " ".join(tokens), tuple(tokens), tuple(made))


def make_example(image: str, *captions: Caption, width: int = 100, height: int = 80) -> Example:
    return Example(image, None, width, height, captions)
