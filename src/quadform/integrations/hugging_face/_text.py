"""Text into sequences of an exact length, with the part to fit on and the part to measure in different documents."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quadform._errors import ArgumentError
from quadform.inspect import Batch

PYTHON_DOCS = "python-docs"
BATCH = 8
_CHARACTERS_PER_TOKEN = 12
_SHORTEST_TOPIC = 500
_RULE = re.compile(r"^([=*~^\-])\1{2,}\n", re.MULTILINE)
"""The line under a heading."""


@dataclass(frozen=True)
class TextSplit:
    """Two lots of documents and where they come from."""

    source: str
    fit: tuple[str, ...]
    measured: tuple[str, ...]


def python_documentation() -> TextSplit:
    """Python's own language reference topics, which every installation carries: every other topic is for fitting.

    Topics quote one another, some entirely. Each paragraph counts once, in the longest topic that has it, so that the
    two parts share no text.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    documents = []
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        paragraphs = [part.strip("\n") for part in _RULE.sub("", topics[name]).split("\n\n") if part.strip()]
        new = [part for part in dict.fromkeys(paragraphs) if part.strip() not in seen]
        seen.update(part.strip() for part in new)
        if sum(map(len, new)) >= _SHORTEST_TOPIC:
            documents.append("\n\n".join(new))
    source = f"{len(documents)} topics of the documentation of Python {sys.version_info.major}.{sys.version_info.minor}"
    return TextSplit(source, tuple(documents[::2]), tuple(documents[1::2]))


def read_text(sources: Sequence[str]) -> TextSplit:
    """Reads files, `-` (standard input) or `python-docs`.

    Several files are documents, alternately for fitting and for measuring. A single one is cut in the middle, between
    two paragraphs (blocks of text with an empty line between them).
    """
    if list(sources) == [PYTHON_DOCS]:
        return python_documentation()
    texts = [_read(source) for source in sources]
    names = ", ".join("standard input" if source == "-" else Path(source).name for source in sources)
    if len(texts) > 1:
        return TextSplit(names, tuple(texts[::2]), tuple(texts[1::2]))
    paragraphs = [part for part in texts[0].split("\n\n") if part.strip()] if texts else []
    if len(paragraphs) < 2:
        raise ArgumentError("--text", "two paragraphs or more, with an empty line between them", f"one in {names}")
    return TextSplit(names, *_halves(paragraphs))


def token_batches(
    tokenizer: Any, split: TextSplit, length: int, sequences: int, device: torch.device | str = "cpu"
) -> tuple[list[Batch], list[Batch]]:
    """(to fit on, to measure): batches of sequences of exactly `length` tokens, special tokens included.

    At most `sequences` sequences each, spread evenly over the text; ArgumentError when a part has fewer than two.
    """
    parts: list[list[Batch]] = []
    for what, documents in (("fitting", split.fit), ("measuring", split.measured)):
        rows = _sequences(tokenizer, documents, length, sequences)
        if len(rows) < 2:
            raise ArgumentError(
                "--text", f"at least two sequences of {length} tokens for {what}", f"{len(rows)} in {split.source}"
            )
        keep = min(sequences, len(rows))
        ids = torch.tensor([rows[index * len(rows) // keep] for index in range(keep)], device=device)
        lots = [ids[start : start + BATCH] for start in range(0, keep, BATCH)]
        parts.append([{"input_ids": lot, "attention_mask": torch.ones_like(lot)} for lot in lots])
    return parts[0], parts[1]


def _sequences(tokenizer: Any, documents: Sequence[str], length: int, sequences: int) -> list[list[int]]:
    text = "\n\n".join(documents)
    wanted = 4 * length * sequences * _CHARACTERS_PER_TOKEN
    if len(text) > wanted:
        stride = len(text) // 4
        text = "\n\n".join(text[start : start + wanted // 4] for start in range(0, 4 * stride, stride))
    rows = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
    return [row for row in rows if len(row) == length]


def _halves(paragraphs: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    half, size = sum(map(len, paragraphs)) / 2, 0
    for count, paragraph in enumerate(paragraphs[:-1], start=1):
        size += len(paragraph)
        if size >= half or count == len(paragraphs) - 1:
            return tuple(paragraphs[:count]), tuple(paragraphs[count:])
    return tuple(paragraphs), ()


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    path = Path(source)
    if not path.is_file():
        raise ArgumentError("--text", f"a file, '-' for standard input, or '{PYTHON_DOCS}'", repr(source))
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError("--text", "a file in UTF-8", f"{source} ({error.reason})") from None
