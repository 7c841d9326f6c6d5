"""The catalogue of models by name, with the sizes of their papers and published configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from triosim.errors import OptionError
from triosim.models.architectures.bert import Bert
from triosim.models.architectures.clip import Clip, Tower
from triosim.models.architectures.convnets import VGG, DenseNet, ResNet
from triosim.models.architectures.convnext import ConvNext
from triosim.models.architectures.deepseek import DeepSeek
from triosim.models.architectures.gemma import Gemma
from triosim.models.architectures.gpt import GPT
from triosim.models.architectures.llama import Llama
from triosim.models.architectures.model import Model
from triosim.models.architectures.t5 import T5
from triosim.models.architectures.vit import ViT

Sizes = Mapping[str, Any]

#: Layers, hidden size and heads: Radford et al. (2019).
_GPT2 = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}
#: The same: Brown et al. (2020), table 2.1 (13B is 5120 wide, so that heads divide it), and Narayanan et al. (2021), table 1.
_GPT3 = {
    "gpt3-125m": (12, 768, 12),
    "gpt3-350m": (24, 1024, 16),
    "gpt3-760m": (24, 1536, 16),
    "gpt3-1.3b": (24, 2048, 16),
    "gpt3-2.7b": (32, 2560, 32),
    "gpt3-6.7b": (32, 4096, 32),
    "gpt3-13b": (40, 5120, 40),
    "gpt3-175b": (96, 12288, 96),
    "gpt-1.7b": (24, 2304, 24),
    "gpt-3.6b": (30, 3072, 32),
    "gpt-7.5b": (36, 4096, 32),
    "gpt-18.4b": (40, 6144, 48),
    "gpt-39.1b": (48, 8192, 64),
    "gpt-76.1b": (60, 10240, 80),
    "gpt-145.6b": (80, 12288, 96),
    "gpt-310.1b": (96, 16384, 128),
    "gpt-529.6b": (105, 20480, 128),
    "gpt-1008b": (128, 25600, 160),
}
#: Layers, hidden size, heads, heads of keys and values, feed-forward size.
_LLAMA = {
    "llama2-7b": (32, 4096, 32, 32, 11008),
    "llama2-13b": (40, 5120, 40, 40, 13824),
    "llama2-70b": (80, 8192, 64, 8, 28672),
    "llama3-8b": (32, 4096, 32, 8, 14336),
    "llama3-70b": (80, 8192, 64, 8, 28672),
    "llama3-405b": (126, 16384, 128, 8, 53248),
    "llama3.2-1b": (16, 2048, 32, 8, 8192),
    "llama3.2-3b": (28, 3072, 24, 8, 8192),
    "mistral-7b": (32, 4096, 32, 8, 14336),
    "mixtral-8x7b": (32, 4096, 32, 8, 14336),
    "mixtral-8x22b": (56, 6144, 48, 8, 16384),
    "qwen2-7b": (28, 3584, 28, 4, 18944),
    "qwen3-8b": (36, 4096, 32, 8, 12288),
}
_LIKE_LLAMA: Mapping[str, Sizes] = {
    "llama2": {"vocab": 32000, "sequence": 4096},
    "llama3.2": {"tied_embeddings": True},
    "mistral": {"vocab": 32000},
    "mixtral": {"vocab": 32000, "experts": 8, "sequence": 4096},
    "qwen2": {"vocab": 152064, "qkv_bias": True, "sequence": 4096},
    "qwen3": {"vocab": 151936, "qk_norm": True, "head_dim": 128, "sequence": 4096},
}
#: The same, and the features of a head.
_GEMMA = {
    "gemma-2b": (18, 2048, 8, 1, 16384, 256),
    "gemma-7b": (28, 3072, 16, 16, 24576, 256),
    "gemma2-2b": (26, 2304, 8, 4, 9216, 256),
    "gemma2-9b": (42, 3584, 16, 8, 14336, 256),
    "gemma2-27b": (46, 4608, 32, 16, 36864, 128),
}
_DEEPSEEK = DeepSeek(
    layers=61,
    hidden=7168,
    heads=128,
    feed_forward=18432,
    expert_width=2048,
    experts=256,
    experts_per_token=8,
    groups=8,
    groups_per_token=4,
    dense_layers=3,
    name="deepseek-v3",
)
_BERT = {"bert-base": (12, 768, 12, 3072), "bert-large": (24, 1024, 16, 4096)}
#: Layers, hidden size, heads, features of a head, feed-forward size; version 1.1 is gated, with an output embedding of its own.
_T5 = {
    "t5-small": (6, 512, 8, 64, 2048),
    "t5-base": (12, 768, 12, 64, 3072),
    "t5-large": (24, 1024, 16, 64, 4096),
    "t5-3b": (24, 1024, 32, 128, 16384),
    "t5-11b": (24, 1024, 128, 128, 65536),
    "t5-v1.1-small": (8, 512, 6, 64, 1024),
    "t5-v1.1-base": (12, 768, 12, 64, 2048),
    "t5-v1.1-large": (24, 1024, 16, 64, 2816),
    "t5-v1.1-xl": (24, 2048, 32, 64, 5120),
    "t5-v1.1-xxl": (24, 4096, 64, 64, 10240),
}
#: Layers, hidden size, heads, feed-forward size, side of a patch.
_VIT = {
    "vit_b_16": (12, 768, 12, 3072, 16),
    "vit_b_32": (12, 768, 12, 3072, 32),
    "vit_l_16": (24, 1024, 16, 4096, 16),
    "vit_l_32": (24, 1024, 16, 4096, 32),
    "vit_h_14": (32, 1280, 16, 5120, 14),
}
#: Layers, hidden size and heads of the image and of the text transformer, side of a patch, side of an image.
_CLIP = {
    "clip-vit-b-32": ((12, 768, 12), (12, 512, 8), 32, 224),
    "clip-vit-b-16": ((12, 768, 12), (12, 512, 8), 16, 224),
    "clip-vit-l-14": ((24, 1024, 16), (12, 768, 12), 14, 224),
    "clip-vit-l-14-336": ((24, 1024, 16), (12, 768, 12), 14, 336),
}
#: Blocks of the third stage (the others have three, those of small models two), and the width of the first stage.
_CONVNEXT = {"tiny": (9, 96), "small": (27, 96), "base": (27, 128), "large": (27, 192), "xlarge": (27, 256)}
_CONVNEXTV2 = {
    "atto": (6, 40),
    "femto": (6, 48),
    "pico": (6, 64),
    "nano": (8, 80),
    "tiny": (9, 96),
    "base": (27, 128),
    "large": (27, 192),
    "huge": (27, 352),
}
_RESNET: Mapping[str, Sizes] = {
    "resnet18": {"blocks": (2, 2, 2, 2), "bottleneck": False},
    "resnet34": {"blocks": (3, 4, 6, 3), "bottleneck": False},
    "resnet50": {"blocks": (3, 4, 6, 3)},
    "resnet101": {"blocks": (3, 4, 23, 3)},
    "resnet152": {"blocks": (3, 8, 36, 3)},
    "resnext50_32x4d": {"blocks": (3, 4, 6, 3), "groups": 32, "width": 4},
    "resnext101_32x8d": {"blocks": (3, 4, 23, 3), "groups": 32, "width": 8},
    "wide_resnet50_2": {"blocks": (3, 4, 6, 3), "width": 128},
    "wide_resnet101_2": {"blocks": (3, 4, 23, 3), "width": 128},
}
#: How many convolutions of 64, 128, 256, 512 and 512 channels.
_VGG = {"vgg11": (1, 1, 2, 2, 2), "vgg13": (2, 2, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_DENSENET: Mapping[str, Sizes] = {
    "densenet121": {"blocks": (6, 12, 24, 16)},
    "densenet161": {"blocks": (6, 12, 36, 24), "growth": 48, "first": 96},
    "densenet169": {"blocks": (6, 12, 32, 32)},
    "densenet201": {"blocks": (6, 12, 48, 32)},
}


def _tower(layers: int, hidden: int, heads: int) -> Tower:
    return Tower(layers=layers, hidden=hidden, heads=heads, feed_forward=4 * hidden)


def _models() -> dict[str, Model]:
    found: dict[str, Model] = {}
    for name, (layers, hidden, heads) in _GPT2.items():
        sizes: Sizes = {"vocab": 50257, "sequence": 1024, "style": "huggingface"}
        found[name] = GPT(layers=layers, hidden=hidden, heads=heads, name=name, **sizes)
    for name, (layers, hidden, heads) in _GPT3.items():
        found[name] = GPT(layers=layers, hidden=hidden, heads=heads, name=name)
    for name, row in _LLAMA.items():
        sizes = dict(zip(("layers", "hidden", "heads", "kv_heads", "feed_forward"), row, strict=True))
        like = [more for start, more in _LIKE_LLAMA.items() if name.startswith(start)]
        found[name] = Llama(**sizes, **(like[0] if like else {}), name=name)
    for name, six in _GEMMA.items():
        sizes = dict(zip(("layers", "hidden", "heads", "kv_heads", "feed_forward", "head_dim"), six, strict=True))
        found[name] = Gemma(**sizes, capped=name.startswith("gemma2"), name=name)
    found[_DEEPSEEK.name] = _DEEPSEEK
    for name, numbers in _BERT.items():
        found[name] = Bert(**dict(zip(("layers", "hidden", "heads", "feed_forward"), numbers, strict=True)), name=name)
    for name, row in _T5.items():
        sizes = dict(zip(("layers", "hidden", "heads", "head_dim", "feed_forward"), row, strict=True))
        newer = "v1.1" in name
        found[name] = T5(**sizes, gated=newer, tied_embeddings=not newer, name=name)
    for name, row in _VIT.items():
        sizes = dict(zip(("layers", "hidden", "heads", "feed_forward", "patch"), row, strict=True))
        found[name] = ViT(**sizes, style="torchvision", name=name)
    for name, (vision, text, patch, image) in _CLIP.items():
        found[name] = Clip(
            vision=_tower(*vision), text=_tower(*text), patch=patch, image=image, projection_dim=text[1], name=name
        )
    for version, family in enumerate((_CONVNEXT, _CONVNEXTV2), 1):
        for size, (blocks, width) in family.items():
            few = 2 if blocks < 9 else 3
            name = f"convnext{'v2' if version == 2 else ''}-{size}"
            found[name] = ConvNext(
                blocks=(few, few, blocks, few),
                widths=tuple(width << stage for stage in range(4)),
                version=version,
                name=name,
            )
    for name, sizes in _RESNET.items():
        found[name] = ResNet(**sizes, name=name)
    for name, counts in _VGG.items():
        stages = tuple((width,) * count for width, count in zip((64, 128, 256, 512, 512), counts, strict=True))
        for ending, normalised in (("", False), ("_bn", True)):
            found[name + ending] = VGG(stages=stages, normalised=normalised, name=name + ending)
    for name, sizes in _DENSENET.items():
        found[name] = DenseNet(**sizes, name=name)
    return found


#: The models by name.
MODELS: Mapping[str, Model] = _models()


def with_layers(model: Model, layers: int) -> Model:
    """Return a model with another number of layers. Raises ``OptionError`` for one whose layers differ."""
    if "layers" not in {one.name for one in fields(model)}:  # type: ignore[arg-type]  # every model is a dataclass
        raise OptionError(
            f"the layers of {model.name} differ from each other", where="layers", fix="leave their number out"
        )
    return replace(model, layers=layers)  # type: ignore[type-var]
