"""Small search spaces, the points of which take a fraction of a second each."""

from __future__ import annotations

from triosim.config import RunConfig
from triosim.configuration_search.spaces.declaration import of_texts, space_of
from triosim.configuration_search.spaces.space import Space
from triosim.configuration_search.spaces.subject import subject_of

GPT = "gpt2(layers=4, hidden=256, heads=8, vocab=1024, sequence=512)"
LLAMA = "llama3-8b(layers=4, hidden=512, heads=8, kv_heads=4, feed_forward=1024, vocab=1024)"
MIXTURE = "mixtral-8x7b(layers=2, hidden=256, heads=8, kv_heads=8, feed_forward=512, vocab=1024)"


def space(model: str, varied: str, **base: object) -> Space:
    """Return a space of what varies, on eight H100s with a batch of 16 samples of 128 words unless ``base`` says otherwise."""
    config = RunConfig.of(**{"topology": "dgx-h100", "global_batch_size": 16, "seq": 128, **base})
    return space_of(subject_of(model, config), config, of_texts(varied.split()))
