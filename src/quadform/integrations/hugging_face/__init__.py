"""Hugging Face transformers: capture of attention calls, loading of local models, text into token batches.

Importing this package imports nothing of transformers; its functions do.
"""

from quadform.inspect import register_capture
from quadform.integrations.hugging_face._capture import HuggingFaceCapture as HuggingFaceCapture, is_hugging_face
from quadform.integrations.hugging_face._loading import load_model as load_model, load_tokenizer as load_tokenizer
from quadform.integrations.hugging_face._text import (
    TextSplit as TextSplit,
    python_documentation as python_documentation,
    read_text as read_text,
    token_batches as token_batches,
)

register_capture(is_hugging_face, HuggingFaceCapture)
