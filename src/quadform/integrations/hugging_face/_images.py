"""Photographs into batches of pixels, with the part to fit on and the part to measure from different files."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.inspect import Batch
from quadform.integrations.hugging_face._loading import _UNLOADABLE, _quiet, _transformers, find_directory

SAMPLE = "sample"
BATCH = 8
MEAN, STD, SIZE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224
"""ImageNet's, which most vision models without a configuration of their own were trained with."""
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_SMALLEST_CROP = 96


@dataclass(frozen=True)
class Photo:
    """A file, or the part (left, top, right, bottom) of one, in pixels."""

    path: Path
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class ImageSplit:
    """Two lots of photographs and where they come from."""

    source: str
    fit: tuple[Photo, ...]
    measured: tuple[Photo, ...]


@dataclass(frozen=True)
class ImageProcessor:
    """Makes pixels of images.

    Attributes:
        description: what happens to an image, for the reader of a report.
        apply: from images to what the model is called with, such as {"pixel_values": (B, 3, H, W)}.
    """

    description: str
    apply: Callable[[Sequence[Any]], Batch]


def sample_photographs(count: int) -> ImageSplit:
    """The two photographs that come with scikit-learn in `count` square parts or fewer: one to fit on, one to measure.

    Parts are at least 96 pixels wide and do not overlap.
    """
    spec = importlib.util.find_spec("sklearn")
    folder = Path(next(iter(spec.submodule_search_locations or ()))) / "datasets" / "images" if spec else None
    if folder is None or not folder.is_dir():
        raise ArgumentError("--images", f"scikit-learn to be installed, for '{SAMPLE}'", "none")
    fit, measured = (tuple(_crops(folder / name, count)) for name in ("china.jpg", "flower.jpg"))
    return ImageSplit("parts of the photographs china.jpg and flower.jpg of scikit-learn", fit, measured)


def read_images(sources: Sequence[str], count: int = 32) -> ImageSplit:
    """Finds image files in files and folders, or the photographs of `sample`.

    Sorted by name, they are alternately for fitting and for measuring; of equal files only the first counts.

    Args:
        sources: files and folders, which are searched with the folders in them; or `sample` alone.
        count: how many parts to cut each photograph of `sample` into, at most.
    """
    if list(sources) == [SAMPLE]:
        return sample_photographs(count)
    files = [path for source in sources for path in _files(source)]
    photos = [Photo(path) for path in _distinct(files)]
    names = ", ".join(Path(source).name for source in sources)
    if len(photos) < 2:
        raise ArgumentError(
            "--images", "two different images or more: one to fit on, one to measure", f"one in {names}"
        )
    return ImageSplit(f"{len(photos)} images of {names}", tuple(photos[::2]), tuple(photos[1::2]))


def load_image_processor(name: str | Path) -> ImageProcessor:
    """How a model's images are prepared: by its preprocessor_config.json, or by the rule of `plain_processor`.

    transformers' own processor is used where it works here without torchvision; otherwise the sizes, means and
    deviations in the file. Without the file, the size is the model's and the rest ImageNet's.
    """
    directory = find_directory(name)
    file = directory / "preprocessor_config.json"
    if not file.is_file():
        config = json.loads((directory / "config.json").read_text("utf-8"))
        return plain_processor(_side(config.get("vision_config", config).get("image_size", SIZE)))
    transformers = _transformers()
    with _quiet(transformers):
        try:
            own = transformers.AutoImageProcessor.from_pretrained(directory, local_files_only=True, backend="pil")
        except _UNLOADABLE:
            given = json.loads(file.read_text("utf-8"))
            side = given.get("crop_size") or given.get("size") or SIZE
            return plain_processor(_side(side), given.get("image_mean", MEAN), given.get("image_std", STD))

    def apply(images: Sequence[Any]) -> Batch:
        try:
            made = own(images=list(images), return_tensors="pt")
        except ValueError as error:
            raise ArgumentError("--images", "images that the model's processor makes equally large", error) from None
        return {key: value for key, value in made.items() if isinstance(value, Tensor)}

    return ImageProcessor(f"prepared by the model's {type(own).__name__}", apply)


def plain_processor(size: int = SIZE, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> ImageProcessor:
    """Shorter side to `size` pixels (bicubic), the square in the centre, (value / 255 - mean) / std per colour."""
    shift, scale = (torch.tensor(values, dtype=torch.float32).view(3, 1, 1) for values in (mean, std))

    def apply(images: Sequence[Any]) -> Batch:
        return {"pixel_values": torch.stack([(_square(image, size) - shift) / scale for image in images])}

    of = "ImageNet's" if tuple(mean) == MEAN and tuple(std) == STD else "the model's"
    return ImageProcessor(f"the central {size} x {size} pixels, normalised by {of} mean and deviation", apply)


def image_batches(
    processor: ImageProcessor, split: ImageSplit, count: int, device: torch.device | str = "cpu"
) -> tuple[list[Batch], list[Batch]]:
    """(to fit on, to measure): batches of eight images and a rest, at most `count` images each, spread evenly."""
    parts: list[list[Batch]] = []
    for photos in (split.fit, split.measured):
        keep = min(count, len(photos))
        chosen = [photos[index * len(photos) // keep] for index in range(keep)]
        lots = [chosen[start : start + BATCH] for start in range(0, keep, BATCH)]
        parts.append(
            [
                {key: value.to(device) for key, value in processor.apply([_open(photo) for photo in lot]).items()}
                for lot in lots
            ]
        )
    return parts[0], parts[1]


def _files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ArgumentError("--images", f"an image, a folder of images, or '{SAMPLE}'", repr(source))
    found = [file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file()]
    if not found:
        raise ArgumentError("--images", "a folder with images", str(path))
    return found


def _distinct(files: Sequence[Path]) -> list[Path]:
    """The files in order, without those whose content an earlier one has; only files of equal size are read."""
    sizes = Counter(path.stat().st_size for path in set(files))
    first: dict[object, Path] = {}
    for path in sorted(set(files)):
        size = path.stat().st_size
        first.setdefault(hashlib.sha256(path.read_bytes()).digest() if sizes[size] > 1 else size, path)
    return list(first.values())


def _open(photo: Photo) -> Any:
    """The photograph as it is meant to be seen, in red, green and blue."""
    image, operations = _pillow()
    try:
        with image.open(photo.path) as opened:
            whole = operations.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise ArgumentError("--images", "an image that Pillow can read", f"{photo.path} ({error})") from None
    return whole if photo.box is None else whole.crop(photo.box)


def _crops(path: Path, count: int) -> list[Photo]:
    """At most `count` squares, as large as possible, in rows around the centre."""
    width, height = _open(Photo(path)).size
    sides = range(_SMALLEST_CROP, min(width, height) + 1)
    enough = [side for side in sides if (width // side) * (height // side) >= count]
    side = max(enough) if enough else _SMALLEST_CROP
    columns, rows = width // side, height // side
    left, top = (width - columns * side) // 2, (height - rows * side) // 2
    corners = [(left + side * column, top + side * row) for row in range(rows) for column in range(columns)]
    keep = min(count, len(corners))
    chosen = [corners[index * len(corners) // keep] for index in range(keep)]
    return [Photo(path, (x, y, x + side, y + side)) for x, y in chosen]


def _square(image: Any, size: int) -> Tensor:
    """(3, size, size), from 0 to 1."""
    width, height = image.size
    factor = size / min(width, height)
    resized = image.resize((max(size, round(width * factor)), max(size, round(height * factor))), resample=3)
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    cropped = resized.crop((left, top, left + size, top + size))
    pixels = torch.frombuffer(bytearray(cropped.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1).float() / 255


def _side(size: Any) -> int:
    """One side of a size, which configurations write as a number, a pair, or a mapping."""
    if isinstance(size, dict):
        size = next((size[key] for key in ("shortest_edge", "height", "longest_edge") if key in size), SIZE)
    return int(size[0] if isinstance(size, list | tuple) else size)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ArgumentError("--images", "Pillow to be installed (pip install pillow)", "no Pillow") from None
    return Image, ImageOps
