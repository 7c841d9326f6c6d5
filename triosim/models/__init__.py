"""Model descriptions: the operators of a training step from sizes alone (``triosim.models.describing``)."""

from triosim.models.bert import Bert as Bert
from triosim.models.clip import Clip as Clip
from triosim.models.clip import Tower as Tower
from triosim.models.convnets import VGG as VGG
from triosim.models.convnets import DenseNet as DenseNet
from triosim.models.convnets import ResNet as ResNet
from triosim.models.convnext import ConvNext as ConvNext
from triosim.models.deepseek import DeepSeek as DeepSeek
from triosim.models.describing import describe as describe
from triosim.models.gemma import Gemma as Gemma
from triosim.models.gpt import GPT as GPT
from triosim.models.llama import Llama as Llama
from triosim.models.t5 import T5 as T5
from triosim.models.vit import ViT as ViT

__all__ = [
    "GPT",
    "T5",
    "VGG",
    "Bert",
    "Clip",
    "ConvNext",
    "DeepSeek",
    "DenseNet",
    "Gemma",
    "Llama",
    "ResNet",
    "Tower",
    "ViT",
    "describe",
]
