"""A tiny Llama on disk: enough of a model for the real engine to run it with random weights, on a CPU too."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

BOS, EOS = "<s>", "</s>"
SPECIAL = (BOS, EOS)
BYTES = 256
LETTERS = [chr(c) for c in range(ord("!"), ord("~") + 1)]


def tiny_llama(folder: Path, *, layers: int = 4, hidden: int = 256, vocab: int = 1024, max_len: int = 8192) -> Path:
    """Write a Llama's ``config.json`` and a byte-level BPE tokenizer that goes with it; there are no weights.

    Load it with ``load_format="dummy"``. Equal arguments make equal bytes.

    Args:
        folder: where to; made if need be.
        layers: of the decoder.
        hidden: width, a multiple of 64; attention heads have 32 each, half as many key-value heads.
        vocab: tokens; two special ones, one per byte, the rest pairs of printable characters.
        max_len: longest request in tokens.

    Returns:
        The folder.

    Raises:
        ValueError: if the width is no multiple of 64, or there are no tokenizers of that many tokens.
    """
    most = len(SPECIAL) + BYTES + len(LETTERS) ** 2
    if not len(SPECIAL) + BYTES <= vocab <= most:
        raise ValueError(f"a vocabulary should have {len(SPECIAL) + BYTES} to {most} tokens, not {vocab}")
    if hidden < 64 or hidden % 64:
        raise ValueError(f"the hidden width should be a multiple of 64, not {hidden}")
    heads = hidden // 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": SPECIAL.index(BOS),
        "eos_token_id": SPECIAL.index(EOS),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": max_len,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads // 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": vocab,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_len,
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": config, "tokenizer.json": _tokenizer(vocab), "tokenizer_config.json": settings}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def vocabulary(model: str) -> int | None:
    """Return the number of tokens that a model folder's ``config.json`` states, ``None`` where there is none."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 0 else None


def _tokenizer(vocab: int) -> dict[str, object]:
    """Return a ``tokenizer.json``: byte-level BPE that merges pairs of printable characters, the first ones first."""
    pairs = list(itertools.islice(itertools.product(LETTERS, repeat=2), vocab - len(SPECIAL) - BYTES))
    tokens = [*SPECIAL, *_byte_letters(), *(a + b for a, b in pairs)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [[a, b] for a, b in pairs],
        },
    }


def _byte_letters() -> list[str]:
    """Return the printable letter that byte-level BPE writes for each byte, in order of the bytes.

    Bytes that are printable in Latin-1 stand for themselves, the others are moved beyond it.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = itertools.count(256)
    return [chr(b) if b in printable else chr(next(moved)) for b in range(BYTES)]
