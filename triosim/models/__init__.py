"""Models described by name, config or sizes: the operators of a training step without a capture."""

from triosim.models.architectures.bert import Bert as Bert
from triosim.models.architectures.clip import Clip as Clip
from triosim.models.architectures.clip import Tower as Tower
from triosim.models.architectures.convnets import VGG as VGG
from triosim.models.architectures.convnets import DenseNet as DenseNet
from triosim.models.architectures.convnets import ResNet as ResNet
from triosim.models.architectures.convnext import ConvNext as ConvNext
from triosim.models.architectures.deepseek import DeepSeek as DeepSeek
from triosim.models.architectures.dlrm import DLRM as DLRM
from triosim.models.architectures.efficientnet import EfficientNet as EfficientNet
from triosim.models.architectures.gemma import Gemma as Gemma
from triosim.models.architectures.gpt import GPT as GPT
from triosim.models.architectures.llama import Llama as Llama
from triosim.models.architectures.t5 import T5 as T5
from triosim.models.architectures.vit import ViT as ViT
from triosim.models.description import describe as describe
