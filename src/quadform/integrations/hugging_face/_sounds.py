"""Recordings into batches of a model's sound features, the part to fit on and the part to measure in different files."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.inspect import Batch
from quadform.integrations.hugging_face._loading import _UNLOADABLE, _quiet, _transformers, find_directory

BATCH = 8
SECONDS = 5.0


@dataclass(frozen=True)
class Recording:
    """One voice: (samples) from -1 to 1, `rate` of them a second."""

    name: str
    rate: int
    samples: Tensor


@dataclass(frozen=True)
class SoundSplit:
    """Two lots of recordings and where they come from."""

    source: str
    fit: tuple[Recording, ...]
    measured: tuple[Recording, ...]


def read_sounds(sources: Sequence[str]) -> SoundSplit:
    """Reads WAV files, or all of a folder; several voices of one recording become their mean.

    Sorted by name, recordings are alternately for fitting and for measuring; a single one is cut in the middle.
    """
    files = sorted({path for source in sources for path in _files(source)})
    recordings = [_read(path) for path in files]
    names = ", ".join(Path(source).name for source in sources)
    if len(recordings) > 1:
        return SoundSplit(f"{len(files)} recordings of {names}", tuple(recordings[::2]), tuple(recordings[1::2]))
    if not recordings:
        raise ArgumentError("--sounds", "at least one WAV file", "none")
    whole = recordings[0]
    halves = whole.samples.tensor_split(2)
    return SoundSplit(names, *((Recording(whole.name, whole.rate, half),) for half in halves))


def load_sound_processor(name: str | Path) -> Any:
    """transformers' feature extractor that lies beside a model's weights (preprocessor_config.json)."""
    transformers = _transformers()
    directory = find_directory(name)
    if not (directory / "preprocessor_config.json").is_file():
        raise ArgumentError(
            "MODEL", "a directory with a preprocessor_config.json, which --sounds needs", str(directory)
        )
    with _quiet(transformers):
        try:
            own = transformers.AutoFeatureExtractor.from_pretrained(directory, local_files_only=True)
        except _UNLOADABLE as error:
            raise ArgumentError(
                "MODEL", "a feature extractor that transformers can load", f"{directory}: {error}"
            ) from None
    if not isinstance(getattr(own, "sampling_rate", None), int):
        raise ArgumentError("MODEL", "a model of sounds, with a sampling rate", f"{directory} ({type(own).__name__})")
    return own


def sound_batches(
    extractor: Any, split: SoundSplit, count: int, seconds: float | None = None, device: torch.device | str = "cpu"
) -> tuple[list[Batch], list[Batch]]:
    """(to fit on, to measure): batches of the model's features of at most `count` pieces each, spread evenly.

    Pieces do not overlap. A model with inputs of a fixed length (Whisper's 30 seconds) gets pieces of that length, and
    silence behind a recording that is shorter; for other models recordings are cut to exactly `seconds`.

    Args:
        extractor: transformers' feature extractor, see `load_sound_processor`.
        seconds: length of a piece; the model's own, or 5 seconds, unless given.

    Raises:
        ArgumentError: a recording has another sampling rate than the model, or a part has no piece.
    """
    rate = int(extractor.sampling_rate)
    fixed = _fixed(extractor)
    size = max(1, round((seconds or fixed or SECONDS) * rate))
    parts: list[list[Batch]] = []
    for what, recordings in (("fitting", split.fit), ("measuring", split.measured)):
        pieces = [piece for one in recordings for piece in _pieces(one, rate, size, fixed is not None)]
        if not pieces:
            raise ArgumentError("--sounds", f"at least {size / rate:g} seconds for {what}", f"less in {split.source}")
        keep = min(count, len(pieces))
        chosen = [pieces[index * len(pieces) // keep].numpy() for index in range(keep)]
        lots = [chosen[start : start + BATCH] for start in range(0, keep, BATCH)]
        parts.append([_features(extractor, lot, rate, device) for lot in lots])
    return parts[0], parts[1]


def _features(extractor: Any, pieces: list[Any], rate: int, device: torch.device | str) -> Batch:
    made = extractor(pieces, sampling_rate=rate, return_tensors="pt")
    return {key: value.to(device) for key, value in made.items() if isinstance(value, Tensor)}


def _fixed(extractor: Any) -> float | None:
    """Seconds of the only length that a model takes; None when it takes any."""
    if isinstance(getattr(extractor, "n_samples", None), int):
        return float(extractor.n_samples) / float(extractor.sampling_rate)
    if isinstance(getattr(extractor, "max_length", None), int) and hasattr(extractor, "num_mel_bins"):
        return float(extractor.max_length) / 100  # a frame each hundredth of a second
    return None


def _pieces(recording: Recording, rate: int, size: int, padded: bool) -> list[Tensor]:
    if recording.rate != rate:
        raise ArgumentError(
            "--sounds",
            f"recordings of {rate} Hz, the model's sampling rate",
            f"{recording.name} of {recording.rate} Hz",
        )
    pieces = [piece for piece in recording.samples.split(size) if len(piece) == size]
    return [recording.samples] if padded and not pieces and len(recording.samples) else pieces


def _files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ArgumentError("--sounds", "a WAV file or a folder of them", repr(source))
    found = [file for file in path.rglob("*") if file.suffix.lower() in {".wav", ".wave"} and file.is_file()]
    if not found:
        raise ArgumentError("--sounds", "a folder with WAV files", str(path))
    return found


def _read(path: Path) -> Recording:
    try:
        with wave.open(str(path), "rb") as file:
            voices, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = bytearray(file.readframes(file.getnframes()))
    except (wave.Error, EOFError, OSError) as error:
        raise ArgumentError(
            "--sounds", "an uncompressed WAV file of whole numbers (PCM)", f"{path} ({error})"
        ) from None
    data = data[: len(data) // (voices * width) * voices * width]
    return Recording(path.name, rate, _numbers(data, width).view(-1, voices).mean(1))


def _numbers(data: bytearray, width: int) -> Tensor:
    """Samples of `width` bytes, smallest first, as numbers from -1 to 1; those of one byte have no sign."""
    if not data:
        return torch.zeros(0)
    octets = torch.frombuffer(data, dtype=torch.uint8).view(-1, width).double()
    value = (octets * 256.0 ** torch.arange(width, dtype=torch.float64)).sum(1)
    half = 2.0 ** (8 * width - 1)
    signed = value - half if width == 1 else value - 2 * half * (value >= half)
    return (signed / half).float()
