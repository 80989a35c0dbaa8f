"""Images: found, kept apart for fitting and measuring, and prepared as the model wants them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image

from quadform import ArgumentError
from quadform.integrations.hugging_face import (
    image_batches,
    load_image_processor,
    load_model,
    plain_processor,
    read_images,
    sample_photographs,
)

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def folder(root: Path, count: int = 5) -> Path:
    for number in range(count):
        paint(root / f"{number}.png", (40 * number, 10, 200))
    return root


def vit(root: Path, **preprocessor) -> Path:
    torch.manual_seed(0)
    configuration = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8
    )
    transformers.ViTModel(configuration).save_pretrained(root)
    if preprocessor:
        (root / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return root


def test_images_of_a_folder_are_alternately_for_fitting_and_for_measuring(tmp_path: Path):
    folder(tmp_path)
    paint(tmp_path / "deeper" / "9.jpg", (255, 255, 255))
    (tmp_path / "notes.txt").write_text("no image")
    split = read_images([str(tmp_path)])
    assert [photo.path.name for photo in split.fit] == ["0.png", "2.png", "4.png"]
    assert [photo.path.name for photo in split.measured] == ["1.png", "3.png", "9.jpg"]
    assert split.source == f"6 images of {tmp_path.name}"


def test_equal_files_count_once(tmp_path: Path):
    folder(tmp_path, 3)
    (tmp_path / "copy.png").write_bytes((tmp_path / "1.png").read_bytes())
    split = read_images([str(tmp_path), str(tmp_path / "0.png")])
    names = [photo.path.name for photo in split.fit + split.measured]
    assert sorted(names) == ["0.png", "1.png", "2.png"]


def test_one_image_no_image_and_what_is_none_are_refused(tmp_path: Path):
    paint(tmp_path / "only.png", (1, 2, 3))
    with pytest.raises(ArgumentError, match=r"--images: expected two different images or more"):
        read_images([str(tmp_path)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"--images: expected a folder with images"):
        read_images([str(tmp_path / "empty")])
    with pytest.raises(ArgumentError, match=r"--images: expected an image, a folder of images, or 'sample', got 'no"):
        read_images(["nowhere"])
    (tmp_path / "broken.png").write_bytes(b"no image at all")
    with pytest.raises(ArgumentError, match=r"--images: expected an image that Pillow can read.*broken\.png"):
        image_batches(plain_processor(8), read_images([str(tmp_path)]), 4)


def test_the_plain_rule(tmp_path: Path):
    """The shorter side resized, the centre cut out: of a picture in three stripes the middle one remains."""
    picture = Image.new("RGB", (90, 30), (255, 0, 0))
    picture.paste((0, 255, 0), (30, 0, 60, 30))
    picture.save(tmp_path / "a.png")
    paint(tmp_path / "b.png", (51, 102, 204), (30, 90))
    processor = plain_processor(10)
    fit, measured = image_batches(processor, read_images([str(tmp_path)]), 4)
    (green,), (blue,) = fit[0]["pixel_values"], measured[0]["pixel_values"]
    assert green.shape == blue.shape == (3, 10, 10)
    expected = (torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1) - MEAN) / STD
    torch.testing.assert_close(green[:, 2:8, 2:8], expected.expand(3, 6, 6))
    torch.testing.assert_close(blue, ((torch.tensor([0.2, 0.4, 0.8]).view(3, 1, 1) - MEAN) / STD).expand(3, 10, 10))
    assert processor.description == "the central 10 x 10 pixels, normalised by ImageNet's mean and deviation"


def test_a_photograph_taken_sideways_is_turned(tmp_path: Path):
    picture = Image.new("RGB", (20, 20), (0, 0, 0))
    picture.paste((255, 255, 255), (0, 0, 20, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be seen after a quarter turn to the right
    picture.save(tmp_path / "a.png", exif=exif)
    paint(tmp_path / "b.png", (0, 0, 0))
    fit, _ = image_batches(plain_processor(20, (0, 0, 0), (1, 1, 1)), read_images([str(tmp_path)]), 1)
    pixels = fit[0]["pixel_values"][0]
    assert not pixels[:, :, :10].any() and bool((pixels[:, :, 10:] == 1).all())


def test_batches_hold_eight_images_spread_over_all(tmp_path: Path):
    for number in range(40):
        paint(tmp_path / f"{number:02}.png", (6 * number, 0, 0))
    split = read_images([str(tmp_path)])
    fit, measured = image_batches(plain_processor(4, (0, 0, 0), (1 / 255,) * 3), split, 10)
    assert [len(batch["pixel_values"]) for batch in fit] == [8, 2] == [len(batch["pixel_values"]) for batch in measured]
    reds = [round(float(image[0, 0, 0]) / 6) for batch in fit for image in batch["pixel_values"]]
    assert reds == list(range(0, 40, 4))


def test_a_model_s_own_processor(tmp_path: Path):
    """As Hugging Face's ViT: to the size without cropping, mean and deviation of one half."""
    root = vit(
        tmp_path / "model",
        image_processor_type="ViTImageProcessor",
        size={"height": 32, "width": 32},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    paint(tmp_path / "images" / "a.png", (255, 0, 51), (80, 20))
    paint(tmp_path / "images" / "b.png", (0, 0, 0))
    processor = load_image_processor(root)
    assert processor.description.startswith("prepared by the model's ViTImageProcessor")
    fit, measured = image_batches(processor, read_images([str(tmp_path / "images")]), 4)
    expected = torch.tensor([1.0, -1.0, -0.6]).view(3, 1, 1).expand(3, 32, 32)
    torch.testing.assert_close(fit[0]["pixel_values"][0], expected, atol=1e-5, rtol=0)
    with torch.no_grad():
        assert load_model(root)(**measured[0]).last_hidden_state.shape == (1, 17, 32)


def test_a_processor_that_cannot_be_loaded_still_gives_its_numbers(tmp_path: Path):
    root = vit(
        tmp_path,
        image_processor_type="NoSuchImageProcessor",
        size={"shortest_edge": 40},
        crop_size={"height": 32, "width": 32},
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.5] * 3,
    )
    processor = load_image_processor(root)
    assert processor.description == "the central 32 x 32 pixels, normalised by the model's mean and deviation"
    pixels = processor.apply([Image.new("RGB", (50, 40), (0, 0, 0))])["pixel_values"]
    torch.testing.assert_close(pixels[0, :, 0, 0], torch.tensor([-0.2, -0.4, -0.6]))


def test_a_model_without_a_processor_has_its_size(tmp_path: Path):
    processor = load_image_processor(vit(tmp_path))
    assert processor.description == "the central 32 x 32 pixels, normalised by ImageNet's mean and deviation"


@pytest.mark.parametrize("count", [1, 6, 20])
def test_the_sample_is_cut_into_parts_that_do_not_overlap(count: int):
    pytest.importorskip("sklearn")
    split = read_images(["sample"], count)
    assert split == sample_photographs(count)
    for photos, name in ((split.fit, "china.jpg"), (split.measured, "flower.jpg")):
        assert len(photos) == count and {photo.path.name for photo in photos} == {name}
        seen = torch.zeros(427, 640, dtype=torch.int)
        for photo in photos:
            assert photo.box is not None
            left, top, right, bottom = photo.box
            assert right - left == bottom - top >= 96 and right <= 640 and bottom <= 427
            seen[top:bottom, left:right] += 1
        assert int(seen.max()) == 1
    fit, measured = image_batches(plain_processor(16), split, count)
    assert sum(len(batch["pixel_values"]) for batch in fit) == count
    assert not torch.equal(fit[0]["pixel_values"], measured[0]["pixel_values"])


def test_the_sample_has_a_limit():
    pytest.importorskip("sklearn")
    assert len(sample_photographs(1000).fit) == 24
