"""The catalogue of models by name, with the sizes of their papers and published configs, and names with other sizes.

``triosim/models/models.json`` has an entry for each family, with its source: ``columns`` are the sizes in which its
``models`` differ, ``sizes`` those that they share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from triosim.config.stacks import STACKS, Stack
from triosim.errors import OptionError, nearest
from triosim.models.architectures.bert import Bert
from triosim.models.architectures.clip import Clip, Tower
from triosim.models.architectures.convnets import VGG, DenseNet, ResNet
from triosim.models.architectures.convnext import ConvNext
from triosim.models.architectures.deepseek import DeepSeek
from triosim.models.architectures.dlrm import DLRM
from triosim.models.architectures.efficientnet import EfficientNet
from triosim.models.architectures.gemma import Gemma
from triosim.models.architectures.gpt import GPT
from triosim.models.architectures.llama import Llama
from triosim.models.architectures.model import ANY_LENGTH, Model
from triosim.models.architectures.ssd import SSD
from triosim.models.architectures.t5 import T5
from triosim.models.architectures.vit import ViT

_ARCHITECTURES: Mapping[str, Callable[..., Model]] = {
    one.__name__: one
    for one in (
        Bert,
        Clip,
        ConvNext,
        DeepSeek,
        DenseNet,
        DLRM,
        EfficientNet,
        Gemma,
        GPT,
        Llama,
        ResNet,
        SSD,
        T5,
        VGG,
        ViT,
    )
}


def _models() -> dict[str, Model]:
    found: dict[str, Model] = {}
    for family in json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8")):
        for name, row in family["models"].items():
            sizes = {**family.get("sizes", {}), **dict(zip(family["columns"], row, strict=True))}
            values = {key: _value(value) for key, value in sizes.items()}
            found[name] = _ARCHITECTURES[family["architecture"]](**values, name=name)
    return found


def _value(value: Any) -> Any:
    """Return a size as a model takes it: the sizes of a transformer of CLIP are a ``Tower``."""
    if isinstance(value, dict):
        return Tower(**value)
    return tuple(value) if isinstance(value, list) else value


#: The models by name.
MODELS: Mapping[str, Model] = _models()


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name.strip().lower())


_BY_PLAIN_NAME = {_plain(name): model for name, model in MODELS.items()}

#: A name with other sizes: ``gpt3-175b(layers=24, hidden=2304)``.
_CHANGED = re.compile(r"\s*([\w.-]+)\s*\((.*)\)\s*", re.DOTALL)


def find(name: str) -> Model | None:
    """Return the model of a name, with the sizes that stand in parentheses behind it; None for no name of the catalogue.

    Case, ``-`` and ``_`` do not matter (``ViT-L-16``, ``Llama-3-8B``). Raises ``OptionError`` for what is no size of the
    model, or no value for it.
    """
    match = _CHANGED.fullmatch(name)
    model = _BY_PLAIN_NAME.get(_plain(name if match is None else match[1]))
    if match is None or model is None:
        return model
    sizes = {}
    known = {one.name: one for one in fields(model) if one.name != "name"}  # type: ignore[arg-type]
    for text in filter(str.strip, match[2].split(",")):
        key, _, value = (part.strip() for part in text.partition("="))
        if key not in known:
            fix = nearest(key, known)
            raise OptionError(f"'{text.strip()}' is no size of {match[1]}", where=name, fix=fix)
        sizes[key] = _size(name, key, value, str(known[key].type))
        expected = getattr(model, key)
        if (
            isinstance(sizes[key], tuple)
            and not known[key].metadata.get(ANY_LENGTH)
            and len(sizes[key]) != len(expected)
        ):
            what = f"{key} has {len(sizes[key])} numbers, those of {match[1]} are {len(expected)}"
            raise OptionError(what, where=name, fix="give as many")
    return replace(model, **sizes, name=name)  # type: ignore[type-var]


def _size(name: str, key: str, text: str, type: str) -> Any:
    """Return the value of a size, whose type is named as its class does."""
    if type.startswith("Literal"):
        if text in (choices := re.findall(r"'(.*?)'", type)):
            return text
        raise OptionError(f"{key} is '{text}'", where=name, fix=f"known: {', '.join(choices)}")
    if type.startswith("Sequence"):
        if re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", text, re.ASCII):
            return tuple(map(int, text.split("-")))
        raise OptionError(f"{key} is '{text}'", where=name, fix="give whole numbers with '-' between them: 512-256-128")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    expected = {"bool": bool, "float": (int, float)}.get(type, int)
    if not isinstance(value, expected) or (isinstance(value, bool) and type != "bool") or value < 0:  # type: ignore[arg-type]
        raise OptionError(
            f"{key} is '{text}'", where=name, fix="give true or false" if type == "bool" else "give a number"
        )
    return value


def nearest_model(name: str) -> str:
    """Return the model that is probably meant, or some of them and how to see all, for an error."""
    found = nearest(name, MODELS, 3)
    return found if found.startswith("did you mean") else f"{found}, which 'triosim describe --list' shows"


def usual_stack(model: Model) -> Stack:
    """Return the stack that a model is trained with where nobody names one: the one that published steps of it ran on.

    Megatron's GPTs run on Megatron. Of steps of Llamas and models like them two are of kernels one by one; torchtitan and
    fms-fsdp compile, and what Megatron fuses by hand takes about as long. Others (MPT, BERT, image models) were not compiled.
    """
    if isinstance(model, GPT) and model.style == "megatron":
        return STACKS["megatron"]
    return STACKS["compiled" if isinstance(model, Llama) and model.style != "transformers-2024" else "eager"]


def with_layers(model: Model, layers: int) -> Model:
    """Return a model with another number of layers. Raises ``OptionError`` for one whose layers differ."""
    if "layers" not in {one.name for one in fields(model)}:  # type: ignore[arg-type]  # every model is a dataclass
        raise OptionError(
            f"the layers of {model.name} differ from each other", where="layers", fix="leave their number out"
        )
    return replace(model, layers=layers)  # type: ignore[type-var]
