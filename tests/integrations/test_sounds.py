"""Sounds: WAV files read, cut, kept apart for fitting and measuring, and prepared as the model wants them."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import pytest
import torch
import transformers

from quadform import ArgumentError
from quadform.integrations.hugging_face import load_sound_processor, read_sounds, sound_batches

RATE = 16000


def record(path: Path, samples: list[list[int]], width: int = 2, rate: int = RATE) -> Path:
    """Writes one list of whole numbers a voice; those of one byte are raised to be positive."""
    data = b"".join(
        (value + (128 if width == 1 else 0)).to_bytes(width, "little", signed=width > 1)
        for moment in zip(*samples, strict=True)
        for value in moment
    )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def extractor(root: Path, **changes) -> Path:
    (root / "config.json").write_text("{}")
    given = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE, "do_normalize": False}
    (root / "preprocessor_config.json").write_text(json.dumps({**given, **changes}))
    return root


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width(tmp_path: Path, width: int):
    half = 2 ** (8 * width - 1)
    values = [0, half // 2, -half // 2, half - 1, -half, 1, -1]
    record(tmp_path / "a.wav", [values, values], width)
    split = read_sounds([str(tmp_path)])
    samples = torch.cat([split.fit[0].samples, split.measured[0].samples])
    torch.testing.assert_close(samples, torch.tensor(values, dtype=torch.float64).div(half).float())


def test_voices_become_their_mean_and_one_recording_is_cut_in_the_middle(tmp_path: Path):
    path = record(tmp_path / "a.wav", [[16384] * 6, [0] * 6])
    split = read_sounds([str(path)])
    assert split.source == "a.wav"
    assert split.fit[0].samples.tolist() == split.measured[0].samples.tolist() == [0.25] * 3


def test_recordings_are_alternately_for_fitting_and_for_measuring(tmp_path: Path):
    for name in ("c", "a", "b"):
        record(tmp_path / f"{name}.wav", [[1, 2]])
    (tmp_path / "notes.txt").write_text("no sound")
    split = read_sounds([str(tmp_path)])
    assert [one.name for one in split.fit] == ["a.wav", "c.wav"]
    assert [one.name for one in split.measured] == ["b.wav"]


def test_pieces_of_one_length_spread_over_all(tmp_path: Path):
    for at, name in enumerate("ab"):
        record(tmp_path / f"{name}.wav", [[at * 1000 + piece for piece in range(45) for _ in range(160)]])
    own = load_sound_processor(extractor(tmp_path))
    fit, measured = sound_batches(own, read_sounds([str(tmp_path)]), 9, seconds=0.02)
    for offset, batches in ((0, fit), (1000, measured)):
        assert [tuple(batch["input_values"].shape) for batch in batches] == [(8, 320), (1, 320)]
        firsts = [round(float(row[0]) * 32768) for batch in batches for row in batch["input_values"]]
        assert firsts == [offset + 2 * (index * 22 // 9) for index in range(9)]


def test_another_sampling_rate_and_too_little_sound_are_refused(tmp_path: Path):
    own = load_sound_processor(extractor(tmp_path))
    record(tmp_path / "a.wav", [[0] * 400], rate=8000)
    with pytest.raises(ArgumentError, match=r"--sounds: expected recordings of 16000 Hz.*got a\.wav of 8000 Hz"):
        sound_batches(own, read_sounds([str(tmp_path)]), 4, seconds=0.01)
    record(tmp_path / "a.wav", [[0] * 400])
    with pytest.raises(ArgumentError, match=r"--sounds: expected at least 5 seconds for fitting, got less in "):
        sound_batches(own, read_sounds([str(tmp_path)]), 4)


def test_what_is_no_sound_is_refused(tmp_path: Path):
    (tmp_path / "a.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(ArgumentError, match=r"--sounds: expected an uncompressed WAV file.*a\.wav"):
        read_sounds([str(tmp_path)])
    with pytest.raises(ArgumentError, match=r"--sounds: expected a WAV file or a folder"):
        read_sounds(["nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"--sounds: expected a folder with WAV files"):
        read_sounds([str(tmp_path / "empty")])
    with pytest.raises(ArgumentError, match=r"--sounds: expected at least one WAV file"):
        read_sounds([])


def test_models_without_sound_are_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"preprocessor_config\.json, which --sounds needs"):
        load_sound_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "NoSuchExtractor"}')
    with pytest.raises(ArgumentError, match="a feature extractor that transformers can load"):
        load_sound_processor(tmp_path)


def test_inputs_of_a_fixed_length_have_silence_behind(tmp_path: Path):
    """Whisper's features are of thirty seconds, a hundred frames a second, whatever comes."""
    transformers.WhisperFeatureExtractor(chunk_length=2).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    generator = torch.Generator().manual_seed(0)
    for name, seconds in (("a", 5), ("b", 1)):
        samples = torch.randint(-3000, 3000, (seconds * RATE,), generator=generator).tolist()
        record(tmp_path / f"{name}.wav", [samples])
    own = load_sound_processor(tmp_path)
    fit, measured = sound_batches(own, read_sounds([str(tmp_path)]), 8)
    assert fit[0]["input_features"].shape == (2, 80, 200)
    features = measured[0]["input_features"][0]
    assert features.shape == (80, 200) and bool((features[:, 110:] == features[:, -1:]).all())
    assert not bool((features[:, :90] == features[:, -1:]).all())
