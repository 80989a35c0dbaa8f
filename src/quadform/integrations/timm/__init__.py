"""timm: capture of its vision Transformers, with the patches' places.

Importing this package imports nothing of timm.
"""

from quadform.inspect import register_capture
from quadform.integrations.timm._capture import (
    is_timm as is_timm,
    patch_grid as patch_grid,
    timm_capture as timm_capture,
)

register_capture(is_timm, timm_capture)
