"""Small reference models whose mixers can be swapped, and a loop that trains them."""

from quadform.models._decoder import Decoder as Decoder, DecoderState as DecoderState
from quadform.models._generate import Streams as Streams, generate as generate
from quadform.models._lstm import LSTMDecoder as LSTMDecoder
from quadform.models._train import IGNORED as IGNORED, Entry as Entry, train as train
