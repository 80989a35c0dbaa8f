"""Published experiments, at the size of a small machine."""

from quadform.reproduce._digits import sheet as sheet
from quadform.reproduce._linear_transformers import (
    FULL as FULL,
    KINDS as KINDS,
    QUICK as QUICK,
    Settings as Settings,
    copy_task as copy_task,
    draw_digits as draw_digits,
)
