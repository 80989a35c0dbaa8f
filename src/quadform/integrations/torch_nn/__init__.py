"""Plain PyTorch: capture of nn.MultiheadAttention, nn.Transformer and of modules that call its attention functions.

Importing this package imports torch alone.
"""

from quadform.inspect import register_capture
from quadform.integrations.torch_nn._capture import has_attention as has_attention, torch_capture as torch_capture

register_capture(has_attention, torch_capture)
