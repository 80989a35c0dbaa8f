"""The code of docs/streaming.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), space)
    assert int(space["state"].length) == 3
