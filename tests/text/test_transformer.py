"""Hugging Face encoders: a word is the mean of its pieces, as the library's own tools find them caption by caption."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from phrasechain.core.errors import DataError
from phrasechain.core.tensors import EmptyParameters, assign_weights
from phrasechain.text.encoders import build_encoder
from phrasechain.text.transformer import TransformerEncoder

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "do", "##g", "##gs", "run", "##s", "t", "-", "shirt"]
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
CAPTIONS = [["A", "dogs", "runs", "t-shirt"], ["zzz"], ["dog", "\x00", "a"], []]


def bert_tokenizer() -> Any:
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=20, **names)


def byte_tokenizer() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<s>", "<pad>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["a dog runs", "the dog"] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


@pytest.fixture(autouse=True)
def _quiet_library() -> None:
    transformers.utils.logging.disable_progress_bar()


def save(folder: Path, model: Any, tokenizer: Any) -> str:
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(PIECES), max_position_embeddings=24, **SIZES)
    return save(tmp_path_factory.mktemp("bert"), transformers.BertModel(config), bert_tokenizer())


def slow(folder: str, captions: list[list[str]]) -> list[list[Tensor]]:
    """Caption by caption and word by word."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    result = []
    for caption in captions:
        encoded = tokenizer(caption, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            vectors = model(**encoded).last_hidden_state[0]
        owners = encoded.word_ids(0)
        words = []
        for place in range(len(caption)):
            pieces = [vectors[s] for s, owner in enumerate(owners) if owner == place]
            words.append(torch.stack(pieces).mean(0) if pieces else torch.zeros(8))
        result.append(words)
    return result


def test_a_word_is_the_mean_of_its_pieces(bert: str) -> None:
    encoder = TransformerEncoder.from_pretrained(bert)
    found = encoder(CAPTIONS)
    assert (encoder.dimension, found.shape, found.dtype) == (8, (4, 4, 8), torch.float32)
    expected = slow(bert, CAPTIONS)
    for row, words in zip(found, expected, strict=True):
        assert not row[len(words) :].any()
        for vector, word in zip(row, words, strict=False):
            torch.testing.assert_close(vector, word)
    assert not found[2, 1].any()  # a control character has no piece
    assert encoder([]).shape == (0, 0, 8)


def test_frozen_stays_as_for_evaluation(bert: str) -> None:
    encoder = TransformerEncoder.from_pretrained(bert).train()
    assert not any(weight.requires_grad for weight in encoder.parameters())
    assert torch.equal(encoder(CAPTIONS), encoder(CAPTIONS))
    assert not encoder(CAPTIONS).requires_grad


def test_fine_tuning(bert: str) -> None:
    encoder = TransformerEncoder.from_pretrained(bert, frozen=False).train()
    assert not torch.equal(encoder(CAPTIONS), encoder(CAPTIONS))  # dropout
    encoder(CAPTIONS).square().sum().backward()
    grad = encoder.model.embeddings.word_embeddings.weight.grad
    used = set(grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert used == {PIECES.index(piece) for piece in PIECES} - {PIECES.index("[PAD]")}


def test_it_is_its_settings_and_its_state(bert: str) -> None:
    encoder = TransformerEncoder.from_pretrained(bert)
    settings = json.loads(json.dumps(encoder.settings))
    assert settings == encoder.settings
    again = TransformerEncoder(**settings)
    assert not torch.equal(again(CAPTIONS), encoder(CAPTIONS))
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(CAPTIONS), encoder(CAPTIONS))


def test_byte_pieces_begin_with_a_space(tmp_path: Path) -> None:
    """And RoBERTa's positions begin after the padding's id: 24 places hold 22 pieces."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=24, pad_token_id=1, bos_token_id=0, eos_token_id=0, **SIZES
    )
    model = transformers.RobertaModel(config).eval()
    encoder = TransformerEncoder.from_pretrained(save(tmp_path, model, tokenizer))
    ids = [tokenizer.encode(" dog"), tokenizer.encode(" runs")]
    assert [tokenizer.convert_ids_to_tokens(each) for each in ids] == [["Ġdog"], ["Ġruns"]]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids[0] + ids[1]])).last_hidden_state[0]
    torch.testing.assert_close(encoder([["dog", "runs"], ["a"] * 5])[0, :2], expected)
    assert encoder([["dog"] * 22]).shape == (1, 22, 8)
    with pytest.raises(DataError, match="takes 22 pieces; a caption of 23 words has 23: shorten it"):
        encoder([["a"], ["dog"] * 23])


def test_the_encoder_of_an_encoder_decoder_and_the_text_side_of_clip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    t5 = transformers.T5Config(
        vocab_size=len(PIECES), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5Model(t5).eval()
    (tmp_path / "t5").mkdir()
    encoder = TransformerEncoder.from_pretrained(save(tmp_path / "t5", model, bert_tokenizer()))
    with torch.no_grad():
        expected = model.encoder(input_ids=torch.tensor([[2, 4, 5, 6, 3]])).last_hidden_state[0]
    found = encoder([["a", "dog"]])[0]
    torch.testing.assert_close(found, torch.stack([expected[1], expected[2:4].mean(0)]))
    text = {"vocab_size": len(PIECES), "max_position_embeddings": 24, "eos_token_id": 3, **SIZES}
    clip = transformers.CLIPConfig(text_config=text, vision_config=SIZES | {"image_size": 8, "patch_size": 4})
    model = transformers.CLIPModel(clip).eval()
    (tmp_path / "clip").mkdir()
    encoder = TransformerEncoder.from_pretrained(save(tmp_path / "clip", model, bert_tokenizer()))
    with torch.no_grad():
        expected = model.text_model(input_ids=torch.tensor([[2, 4, 5, 6, 3]])).last_hidden_state[0]
    found = encoder([["a", "dog"]])[0]
    torch.testing.assert_close(found, torch.stack([expected[1], expected[2:4].mean(0)]))


def test_captions_that_are_too_long(bert: str) -> None:
    encoder = TransformerEncoder.from_pretrained(bert)
    assert encoder([["a"] * 18]).shape == (1, 18, 8)
    with pytest.raises(DataError, match="takes 20 pieces; a caption of 10 words has 22: shorten it"):
        encoder([["a"], ["dog"] * 10])


def test_models_that_cannot_be_loaded(bert: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be loaded as a text encoder") as caught:
        TransformerEncoder.from_pretrained(str(tmp_path))
    assert "\n" not in str(caught.value)
    vit = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **SIZES))
    with pytest.raises(DataError, match="cannot be loaded as a text encoder"):
        TransformerEncoder.from_pretrained(save(tmp_path, vit, bert_tokenizer()))


def test_weights_that_are_pickled_or_missing(bert: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(bert) / name).read_bytes())
    state = load_file(Path(bert) / "model.safetensors")
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="cannot be loaded as a text encoder"):
        TransformerEncoder.from_pretrained(str(tmp_path))
    pooled = {name: tensor for name, tensor in state.items() if "pooler" not in name}
    save_file(pooled, tmp_path / "model.safetensors", {"format": "pt"})
    expected = TransformerEncoder.from_pretrained(bert)(CAPTIONS)
    assert torch.equal(TransformerEncoder.from_pretrained(str(tmp_path))(CAPTIONS), expected)
    pooled.pop("embeddings.word_embeddings.weight")
    save_file(pooled, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"not a trained model: 1 weights are missing, such as 'embeddings\.word_emb"):
        TransformerEncoder.from_pretrained(str(tmp_path))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=r"needs transformers: pip install 'phrasechain\[hf\]'"):
        TransformerEncoder.from_pretrained("some/model")


ROTARY = {"vocab_size": len(PIECES), "max_position_embeddings": 24, "pad_token_id": 0} | SIZES


@pytest.mark.parametrize(
    "model",
    [
        lambda: transformers.BertModel(transformers.BertConfig(vocab_size=len(PIECES), **SIZES)),
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**ROTARY)),  # a buffer of frequencies
        lambda: transformers.CLIPTextModel(
            transformers.CLIPTextConfig(vocab_size=len(PIECES), pad_token_id=0, **SIZES)
        ),
    ],
    ids=["bert", "rotary", "clip"],
)
def test_an_encoder_that_is_built_without_weights_has_its_buffers(tmp_path: Path, model: Any) -> None:
    """Positions and frequencies are in no file of weights."""
    torch.manual_seed(0)
    encoder = TransformerEncoder.from_pretrained(save(tmp_path, model(), bert_tokenizer()))
    before = torch.get_rng_state()
    with EmptyParameters():
        empty = build_encoder("transformer", encoder.settings)
    assert all(weight.is_meta for weight in empty.parameters() if weight.dim() > 1)
    assert torch.equal(torch.get_rng_state(), before)
    assign_weights(empty, encoder.state_dict(), "text.json")
    assert not any(each.is_meta for each in (*empty.parameters(), *empty.buffers()))
    assert torch.equal(empty.eval()(CAPTIONS), encoder(CAPTIONS))
