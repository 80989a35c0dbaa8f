"""Models from local directories and installed packages; nothing here ever reaches for the network."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from quadform._errors import ArgumentError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_UNLOADABLE = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError, pickle.UnpicklingError)


def find_directory(name: str | Path) -> Path:
    """The Hugging Face directory that a name stands for.

    Args:
        name: a directory with a config.json, the import name of an installed package that carries one such directory
            (which is searched, not imported), or `package:path/inside` when it carries several.
    """
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ArgumentError("MODEL", "a directory with a config.json", str(path))
        return path
    package, _, inside = str(name).partition(":")
    root = _package_root(package)
    if root is None:
        raise ArgumentError("MODEL", "a local directory or an installed package that carries a model", repr(str(name)))
    if inside:
        return find_directory(_contained(root, inside))
    found = sorted(config.parent for config in root.rglob("config.json") if _weights(config.parent))
    if not found:
        raise ArgumentError("MODEL", "a package with a config.json beside weights", f"the package {package}")
    if len(found) > 1:
        choices = ", ".join(f"{package}:{directory.relative_to(root)}" for directory in found)
        raise ArgumentError("MODEL", f"one of {choices}", package)
    return found[0]


def load_model(name: str | Path, kind: str = "AutoModel") -> Any:
    """A model in evaluation mode and float32, from a directory or package (see `find_directory`).

    Args:
        kind: transformers' class that loads it; "AutoModelForCausalLM" adds the head that predicts tokens.

    Raises:
        ArgumentError: no such model, no weights, weights that do not cover the model, or weights that are not finite.
    """
    transformers = _transformers()
    directory = find_directory(name)
    if not _weights(directory):
        raise ArgumentError("MODEL", "a directory with weights (*.safetensors or pytorch_model.bin)", str(directory))
    with _quiet(transformers):
        try:
            model, info = getattr(transformers, kind).from_pretrained(
                directory, local_files_only=True, output_loading_info=True, dtype=torch.float32
            )
        except _UNLOADABLE as error:
            raise ArgumentError("MODEL", "a model that transformers can load", f"{directory}: {error}") from None
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing or info["mismatched_keys"]:
        lacks = missing or [str(key) for key in info["mismatched_keys"]]
        raise ArgumentError("MODEL", "weights for every layer of the model", f"{directory}, without {_several(lacks)}")
    spoiled = [key for key, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if spoiled:
        raise ArgumentError("MODEL", "finite weights", f"{directory}, with NaN or infinity in {_several(spoiled)}")
    return model.eval()


def load_tokenizer(name: str | Path) -> Any:
    """The fast tokenizer that lies beside a model's weights."""
    transformers = _transformers()
    directory = find_directory(name)
    if not (directory / "tokenizer.json").is_file():
        raise ArgumentError("MODEL", "a directory with a tokenizer (tokenizer.json)", str(directory))
    with _quiet(transformers):
        try:
            return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except _UNLOADABLE as error:
            raise ArgumentError("MODEL", "a tokenizer that transformers can load", f"{directory}: {error}") from None


def _package_root(package: str) -> Path | None:
    if not package.isidentifier():
        return None
    spec = importlib.util.find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def _contained(root: Path, inside: str) -> Path:
    path = (root / inside).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_dir():
        raise ArgumentError("MODEL", f"a directory inside {root.name}", inside)
    return path


def _weights(directory: Path) -> list[Path]:
    return [path for pattern in _WEIGHTS for path in directory.glob(pattern)]


def _several(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ArgumentError(
            "MODEL", "transformers to be installed (pip install 'quadform[hf]')", "no transformers"
        ) from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' notices and progress bars, whose content is checked here instead."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
