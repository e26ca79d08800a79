"""Phrases and contexts against a loop over captions, each read by itself."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from phrasechain.core.errors import DataError
from phrasechain.model.batch import Batch
from phrasechain.model.phrase_encoder import CONTEXTS, PhraseEncoder
from phrasechain.text.words import WordEncoder

D, H = 3, 2
WORDS = tuple("abcdefgh")
Caption = tuple[list[str], list[tuple[int, int]]]  # tokens and spans


def make_batch(captions: list[Caption]) -> Batch:
    """A batch that has its text, and nothing of images."""
    spans = [(b, t, span) for b, (_, each) in enumerate(captions) for t, span in enumerate(each)]
    nothing: Any = torch.empty(0)
    of_images = ("sizes", "boxes", "features", "spatial", "region_mask")
    names = (*of_images, "spans", "categories")
    return Batch(
        images=("0",),
        captions=tuple(range(len(captions))),
        tokens=tuple(tuple(tokens) for tokens, _ in captions),
        caption_image=torch.zeros(len(captions), dtype=torch.int64),
        lengths=torch.tensor([len(each) for _, each in captions]),
        steps=max(len(each) for _, each in captions),
        phrase_caption=torch.tensor([b for b, _, _ in spans]),
        phrase_step=torch.tensor([t for _, t, _ in spans]),
        token_spans=torch.tensor([span for _, _, span in spans]),
        **dict.fromkeys(names, nothing),
    )


def make_encoder(context: str = "M+LR+G", packed: bool = True, dropout: float = 0.0) -> PhraseEncoder:
    torch.manual_seed(0)
    return PhraseEncoder(WordEncoder(WORDS, D), H, context=context, packed=packed, dropout=dropout)


def slow(encoder: PhraseEncoder, captions: list[Caption]) -> tuple[Tensor, Tensor]:
    """The same, caption by caption and phrase by phrase, from states that are read without padding."""
    phrases, steps = [], max(len(spans) for _, spans in captions)
    context = torch.zeros(len(captions), steps - 1, 8 * H)
    for b, (tokens, spans) in enumerate(captions):
        states = encoder.lstm(encoder.encoder([tokens]))[0][0]
        none = torch.zeros(H)
        ahead = [*states[:, :H], none]  # ahead[-1]: nothing read yet
        back = [*states[:, H:], none]  # back[len(tokens)]: nothing read yet
        vectors = [torch.cat([ahead[end - 1], back[first]]) for first, end in spans]
        whole = torch.cat([ahead[len(tokens) - 1], back[0]])
        phrases += vectors
        for t in range(1, len(spans)):
            middle = torch.cat([ahead[spans[t][0] - 1], back[spans[t - 1][1]]])
            context[b, t - 1] = torch.cat([middle, vectors[t - 1], vectors[t], whole])
    return torch.stack(phrases), context


SPANS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).flatmap(
    lambda tokens: st.tuples(
        st.just(tokens),
        st.lists(
            st.tuples(st.integers(0, len(tokens) - 1), st.integers(1, len(tokens))).filter(lambda s: s[0] < s[1]),
            min_size=1,
            max_size=4,
        ).map(sorted),
    )
)


@given(st.lists(SPANS, min_size=1, max_size=4))
@settings(max_examples=50)
def test_phrases_and_contexts_are_those_of_the_loop(captions: list[Caption]) -> None:
    encoder = make_encoder()
    phrases, context = encoder(make_batch(captions))
    expected_phrases, expected_context = slow(encoder, captions)
    torch.testing.assert_close(phrases, expected_phrases)
    torch.testing.assert_close(context, expected_context)


CAPTIONS: list[Caption] = [
    (list("abcdefg"), [(0, 2), (2, 3), (5, 7)]),  # the first two touch
    (list("hgf"), [(0, 3), (0, 1)]),  # one within the other, from the first to the last token
    (list("a"), [(0, 1)]),
]


def test_contexts_are_parts_of_the_largest() -> None:
    batch = make_batch(CAPTIONS)
    _, largest = make_encoder()(batch)
    assert largest is not None
    for context, parts in CONTEXTS.items():
        encoder = make_encoder(context)
        assert (encoder.dimension, encoder.context_dimension) == (2 * H, 2 * H * len(parts))
        phrases, vectors = encoder(batch)
        assert phrases.shape == (6, 2 * H)
        if parts:
            torch.testing.assert_close(vectors, largest[..., : encoder.context_dimension])
        else:
            assert vectors is None


def test_a_caption_does_not_depend_on_the_others() -> None:
    encoder = make_encoder()
    together = encoder.read([tokens for tokens, _ in CAPTIONS])
    for b, (tokens, _) in enumerate(CAPTIONS):
        alone = encoder.read([tokens])
        torch.testing.assert_close(together.forward[b, : len(tokens)], alone.forward[0, :-1])
        torch.testing.assert_close(together.backward[b, : len(tokens)], alone.backward[0, :-1])
        assert not together.backward[b, len(tokens) :].any()


def test_gradients_are_those_of_the_loop() -> None:
    encoder = make_encoder()
    torch.manual_seed(1)
    found = []
    for phrases, context in (encoder(make_batch(CAPTIONS)), slow(encoder, CAPTIONS)):
        weights = torch.linspace(-1, 1, phrases.numel() + context.numel())
        loss = torch.cat([phrases.flatten(), context.flatten()]) @ weights
        found.append(torch.autograd.grad(loss, [*encoder.lstm.parameters(), encoder.encoder.word_vectors.weight]))
    for fast, expected in zip(*found, strict=True):
        torch.testing.assert_close(fast, expected, rtol=1e-4, atol=1e-5)


def test_unpacked_as_the_authors_read_it() -> None:
    """Over the padding; the last token is the padded last place, which index -1 is too."""
    encoder = make_encoder(packed=False)
    batch = make_batch(CAPTIONS)
    phrases, context = encoder(batch)
    states, _ = encoder.lstm(encoder.encoder(batch.tokens))
    assert context is not None
    row = 0
    for b, (_, spans) in enumerate(CAPTIONS):
        for t, (first, end) in enumerate(spans):
            torch.testing.assert_close(phrases[row], torch.cat([states[b, end - 1, :H], states[b, first, H:]]))
            if t:
                middle = torch.cat([states[b, first - 1, :H], states[b, spans[t - 1][1], H:]])
                whole = torch.cat([states[b, -1, :H], states[b, 0, H:]])
                expected = torch.cat([middle, phrases[row - 1], phrases[row], whole])
                torch.testing.assert_close(context[b, t - 1], expected)
            row += 1


def test_dropout_is_before_and_after_the_lstm() -> None:
    torch.manual_seed(0)
    encoder = PhraseEncoder(WordEncoder(WORDS, 40), 200, dropout=0.25)
    seen: list[Tensor] = []
    encoder.dropout.register_forward_hook(lambda _, given, result: seen.append(result))
    states = encoder.read([list("abcd")] * 8)
    assert 0.2 < (seen[0] == 0).float().mean() < 0.3
    kept = states.forward[:, :4] != 0
    assert 0.2 < (~kept).float().mean() < 0.3
    expected = encoder.lstm(seen[0])[0][..., :200] / 0.75
    torch.testing.assert_close(states.forward[:, :4][kept], expected[kept])
    encoder.eval()
    assert torch.equal(encoder.read([list("abcd")]).forward, encoder.read([list("abcd")]).forward)
    assert (encoder.read([list("abcd")]).forward[:, :4] != 0).all()


def test_its_lstm_is_torch_s_own() -> None:
    """So that the authors' checkpoints fit by name."""
    assert isinstance(make_encoder().lstm, nn.LSTM)
    assert {"weight_ih_l0", "bias_hh_l0_reverse"} <= make_encoder().lstm.state_dict().keys()


def test_an_unknown_context() -> None:
    with pytest.raises(DataError, match=r"no context named 'LR'; there are: none, M, M\+LR, M\+LR\+G"):
        make_encoder("LR")
