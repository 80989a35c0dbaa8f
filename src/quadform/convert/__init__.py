"""Conversions between forms: exact where a theorem allows it, otherwise with a measured error."""

from quadform.convert import _similarity_to_kernel as _similarity_to_kernel
from quadform.convert._registry import (
    Certificate as Certificate,
    Converted as Converted,
    convert as convert,
    register as register,
)
