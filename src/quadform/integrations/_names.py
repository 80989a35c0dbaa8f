"""What the names of modules say."""

from __future__ import annotations

import re

_CROSS = re.compile(r"cross|encoder_attn|enc_?dec", re.IGNORECASE)


def named_cross(name: str) -> bool:
    """Whether a module is named as one that attends to another sequence: its own name or that of the module around it."""
    return bool(_CROSS.search(".".join(name.split(".")[-2:])))
