"""Hugging Face transformers: capture of attention calls, mixers in place of attention, generation with states, loading of
local models; text, images and sounds into batches.

Importing this package imports nothing of transformers; its functions do.
"""

from quadform.inspect import register_capture
from quadform.integrations.hugging_face._cache import StateCache as StateCache
from quadform.integrations.hugging_face._capture import (
    HuggingFaceCapture as HuggingFaceCapture,
    is_hugging_face as is_hugging_face,
)
from quadform.integrations.hugging_face._generate import Generated as Generated, generate_text as generate_text
from quadform.integrations.hugging_face._images import (
    ImageProcessor as ImageProcessor,
    ImageSplit as ImageSplit,
    image_batches as image_batches,
    load_image_processor as load_image_processor,
    plain_processor as plain_processor,
    read_images as read_images,
    sample_photographs as sample_photographs,
)
from quadform.integrations.hugging_face._loading import load_model as load_model, load_tokenizer as load_tokenizer
from quadform.integrations.hugging_face._mixed import Mixed as Mixed, with_mixers as with_mixers
from quadform.integrations.hugging_face._mixer_text import read_mixers as read_mixers
from quadform.integrations.hugging_face._saved import load_cache as load_cache, save_cache as save_cache
from quadform.integrations.hugging_face._sounds import (
    SoundSplit as SoundSplit,
    load_sound_processor as load_sound_processor,
    read_sounds as read_sounds,
    sound_batches as sound_batches,
)
from quadform.integrations.hugging_face._text import (
    TextSplit as TextSplit,
    python_documentation as python_documentation,
    read_text as read_text,
    token_batches as token_batches,
)

register_capture(is_hugging_face, HuggingFaceCapture)
