"""Attention heads of known kind: a data set on which an inspector shows that it names each."""

from quadform.inspect.planted._confusion import (
    Confusion as Confusion,
    Named as Named,
    name_all as name_all,
    name_head as name_head,
)
from quadform.inspect.planted._dataset import (
    KINDS as KINDS,
    LEVELS as LEVELS,
    SCHEMA as SCHEMA,
    Planted as Planted,
    generate as generate,
    load as load,
    save as save,
)
from quadform.inspect.planted._page import page as page
