"""What computes each form on this machine."""

from __future__ import annotations

import torch

from quadform.forms._registry import FORMS


def backends() -> dict[str, str]:
    """The implementation that is active for each form.

    Returns:
        {form: implementation}; every form is pure PyTorch in this version.
    """
    return dict.fromkeys(FORMS, f"torch {torch.__version__}")
