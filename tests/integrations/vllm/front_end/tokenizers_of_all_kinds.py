"""Fast tokenizers of the kinds that models ship, small enough to be trained in a test."""

from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from agentkv.integrations.vllm.front_end.boundaries import ADVERSARIAL

CORPUS = [
    Path(__file__).read_text(encoding="utf-8"),
    *ADVERSARIAL,
    "漢字かな مرحبا שלום 한국어 ไทย",
]
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "[INST]", "<|end|>"]


def _fast(tokenizer: Tokenizer, *added: AddedToken) -> PreTrainedTokenizerFast:
    tokenizer.add_tokens(list(added))
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made.model_max_length = 10**9
    return made


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """As GPT's, Llama 3's and Qwen's: bytes, a regular expression, NFC before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    return _fast(tokenizer)


def sentencepiece_bpe() -> PreTrainedTokenizerFast:
    """As Llama 2's and Gemma's: a blank before every text, bytes for what is in no token."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.decoder = decoders.Sequence(
        [
            *(decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.train_from_iterator(
        CORPUS[:1],
        trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", *SPECIAL, *byte_tokens]),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return _fast(tokenizer)


def unigram() -> PreTrainedTokenizerFast:
    """As T5's and XLNet's: NFKC, and a blank where a text begins alone."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=500,
            special_tokens=["<unk>", *SPECIAL],
            unk_token="<unk>",
        ),
    )
    return _fast(tokenizer)


def word_piece() -> PreTrainedTokenizerFast:
    """As BERT's: lower case without accents, and a token behind each text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", *SPECIAL])
    )
    ends = [(text, tokenizer.token_to_id(text)) for text in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends
    )
    return _fast(tokenizer)


def awkward_added_tokens() -> PreTrainedTokenizerFast:
    """Added tokens that strip, overlap one another or are looked for in words only."""
    tokenizer = Tokenizer.from_str(byte_level_bpe().backend_tokenizer.to_str())
    return _fast(
        tokenizer,
        AddedToken("<mask>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("<|user|>!", normalized=False),
        AddedToken("x<s", normalized=False),
        AddedToken("\n\n", normalized=False),
        AddedToken("<tool>", normalized=True),
        AddedToken("<safe>", normalized=False, special=True),
    )


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    make.__name__: make
    for make in (byte_level_bpe, sentencepiece_bpe, unigram, word_piece, awkward_added_tokens)
}
