"""The numbers of parameters that are published of the models with names."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import triosim
from triosim.errors import OptionError
from triosim.models.catalogue import MODELS, find

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-large-123b": 122_610_069_504,
    "yi-34b": 34_388_917_248,
    "phi3-mini": 3_821_079_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-v1.1-base": 247_577_856,
    "vit_b_16": 86_567_656,
    "vit_h_14": 632_045_800,
    "clip-vit-b-32": 151_277_313,
    "clip-vit-b-16": 149_620_737,
    "clip-vit-l-14": 427_616_513,
    "clip-vit-l-14-336": 427_944_193,
    "convnext-tiny": 28_589_128,
    "convnext-small": 50_223_688,
    "convnext-base": 88_591_464,
    "convnext-large": 197_767_336,
    "convnextv2-tiny": 28_635_496,
    "convnextv2-base": 88_717_800,
    "convnextv2-huge": 660_289_640,
    "efficientnet_b0": 5_288_548,
    "efficientnet_b3": 12_233_232,
    "efficientnet_b7": 66_347_960,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "seresnext50_32x4d": 27_559_896,
    "wide_resnet50_2": 68_883_240,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16_bn": 138_365_992,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_a_named_model_has_the_parameters_of_the_published_one(name: str, count: int) -> None:
    length = None if name[:3] in ("vit", "res", "wid", "vgg", "den", "con", "eff", "ser") else 8
    trace = triosim.describe(name, sequence=length, optimizer="none")
    assert sum(one.numel for one in trace.parameters.values()) == count


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt3-175b", 174.6), ("gpt-18.4b", 18.4), ("gpt-145.6b", 145.6), ("gpt-1008b", 1008.0)]
)
def test_gpts_are_as_large_as_their_papers_say(name: str, billions: float) -> None:
    """Narayanan et al. 2021, table 1; of 175 billion, with 51,200 words and 2,048 positions, equation 2 gives 174.6."""
    trace = triosim.describe(name, sequence=8, optimizer="none")
    assert sum(one.numel for one in trace.parameters.values()) / 1e9 == pytest.approx(billions, abs=0.05)


def test_deepseek_has_671_billion_parameters() -> None:
    trace = triosim.describe("deepseek-v3", sequence=8, optimizer="none")
    assert sum(one.numel for one in trace.parameters.values()) / 1e9 == pytest.approx(671.0, abs=0.05)


def test_a_name_takes_other_sizes_in_parentheses() -> None:
    assert find("llama3-8b(layers=2, vocab=1000,tied_embeddings=true)") == replace(
        MODELS["llama3-8b"],  # type: ignore[type-var]
        layers=2,
        vocab=1000,
        tied_embeddings=True,
        name="llama3-8b(layers=2, vocab=1000,tied_embeddings=true)",
    )
    assert find("nobody(layers=2)") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt2(layer=2)", "'layer=2' is no size of gpt2; did you mean 'layers'?"),
        ("gpt2(layers=two)", "layers is 'two'; give a number"),
        ("gpt2(layers=-2)", "layers is '-2'; give a number"),
        ("gpt2(layers)", "layers is ''; give a number"),
        ("convnext-tiny(widths=96)", "widths has 1 numbers, those of convnext-tiny are 4; give as many"),
        ("dlrm(top=512-one)", "top is '512-one'; give whole numbers with '-' between them: 512-256-128"),
        ("gpt2(name=x)", "'name=x' is no size of gpt2"),
        ("llama3-8b(style=other)", "style is 'other'; known: transformers, transformers-2024, torchtitan"),
        ("llama3-8b(qk_norm=1)", "qk_norm is '1'; give true or false"),
    ],
)
def test_what_is_no_size_of_a_model_is_named(name: str, said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"{name}: {said}")):
        find(name)


@pytest.mark.parametrize(("name", "size"), [("gpt2(heads=0)", "heads"), ("dlrm(tables=0)", "tables")])
def test_a_size_of_nothing_is_named(name: str, size: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"{name}: {size} cannot be 0; give 1 or more")):
        triosim.describe(name, batch=1)


def test_ssd300_has_8732_boxes_of_81_classes() -> None:
    """Liu et al. 2016, section 3.1: of maps of 38, 19, 10, 5, 3 and 1 places a side."""
    trace = triosim.describe("ssd300", batch=2, optimizer="none")
    (scores,) = [one for one in trace.operators if one.name.endswith("log_softmax")]
    assert scores.outputs[0].shape == (2 * 8732, 81)
