"""How values lie in memory, as PyTorch says; and that what cannot be described says why."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import triosim
from triosim.cli import run
from triosim.errors import OptionError, TriosimError
from triosim.models import GPT, Llama
from triosim.models.operators.layout import contiguous, dense_like, viewed


def test_views_have_the_strides_that_pytorch_gives_them() -> None:
    torch = pytest.importorskip("torch")
    chance = random.Random(7)
    views = copies = 0
    for _ in range(2000):
        shape = [chance.choice((1, 2, 3, 4)) for _ in range(chance.randint(1, 4))]
        order = chance.sample(range(len(shape)), len(shape))
        tensor = torch.empty(shape).permute(order)
        sizes = [*tensor.shape, chance.choice((1, 1, 2))]
        tensor = tensor.unsqueeze(-1).expand(sizes) if chance.random() < 0.3 else tensor
        new = list(tensor.shape)
        for _ in range(chance.randint(1, 3)):  # two lengths joined, or one put elsewhere
            if len(new) > 1 and chance.random() < 0.7:
                place = chance.randrange(len(new) - 1)
                new[place : place + 2] = [new[place] * new[place + 1]]
            else:
                new.insert(chance.randrange(len(new) + 1), 1)
        found = viewed(tuple(tensor.shape), tuple(tensor.stride()), tuple(new))
        try:
            strides = tensor.view(new).stride()
            views += 1
        except RuntimeError:
            assert found is None
            copies += 1
            continue
        assert found is not None
        assert [one for one, length in zip(found, new, strict=True) if length > 1] == [
            one for one, length in zip(strides, new, strict=True) if length > 1
        ]
    assert min(views, copies) > 100


def test_results_lie_as_pytorch_lays_them() -> None:
    torch = pytest.importorskip("torch")
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2)):
        tensor = torch.empty(2, 3, 4, 5).permute(order)
        part = tensor[..., : tensor.shape[-1] - 1]
        for one in (tensor, part):
            assert dense_like(tuple(one.shape), tuple(one.stride())) == (one + one).stride()
    assert contiguous((2, 3, 4)) == (12, 4, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lama3-8b"], "unknown model 'lama3-8b'; did you mean 'llama3-8b'?"),
        (["llama3-8b(layers=2"], "llama3-8b(layers=2: a parenthesis is not closed; end it in ')'"),
        (["gpt2", "--dtype", "fp17"], "unknown dtype 'fp17'; known: bfloat16, float16, float32"),
        (["gpt2", "--optimizer", "adam"], "--optimizer: 'adam' is not known; did you mean 'adamw'?"),
        (["gpt2", "--batch", "0"], "--batch: 0 is less than 1; give 1 or more"),
        (["gpt2", "--seq", "2048"], "a sequence of 2048 tokens is longer than the 1024 positions of gpt2"),
        (
            ["resnet50", "--layers", "2"],
            "layers: the layers of resnet50 differ from each other; leave their number out",
        ),
        (["resnet50", "--seq", "2"], "sequence: resnet50 reads no tokens; leave it out"),
        (["resnet50", "--attention", "math"], "attention: resnet50 has no attention; leave it out"),
        (
            ["bert-base", "--layers", "1", "--kernels", "fused"],
            "kernels: bert-base has nothing that is known to be fused",
        ),
        (["llama3-8b", "--layers", "1", "--dropout", "0.1"], "dropout: llama3-8b has no dropout; leave it out"),
        (["gpt2", "--dtype", "fp32", "--precision", "mixed"], "dtype: mixed precision does not compute in float32"),
        (["gpt2", "--dropout", "2"], "--dropout: '2' is not a probability; give 0 or more, and less than 1"),
        (["gpt2", "--gpu", "H10"], "H10"),
        (["gpt2", "-o", "trace.txt"], "does not name a trace; end it in .json or .json.gz"),
    ],
)
def test_what_cannot_be_described_is_said_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["describe", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a config"),
        ("{}", "the key 'model_type' is missing"),
        ('{"model_type": "lama"}', "model_type 'lama' is not known; did you mean 'llama'?"),
        ('{"model_type": "gpt2", "n_layer": 2}', "the key 'n_embd' is missing"),
        ('{"model_type": "gpt2", "n_layer": "two"}', "n_layer: 'two' is not a size"),
    ],
)
def test_a_config_that_says_too_little_is_named(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(TriosimError, match=r"config\.json: ") as error:
        triosim.describe(path)
    assert said in str(error.value)


def test_heads_of_keys_must_divide_those_of_queries() -> None:
    with pytest.raises(OptionError, match="8 heads are not divisible by 3 heads of keys and values"):
        triosim.describe(Llama(layers=1, hidden=64, heads=8, kv_heads=3, feed_forward=96), sequence=8)


def test_heads_must_divide_the_features() -> None:
    with pytest.raises(OptionError, match="100 features are not divisible by 3 heads"):
        triosim.describe(GPT(layers=1, hidden=100, heads=3), sequence=8)


def test_the_command_writes_a_trace_that_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpt.json.gz"
    assert run(["describe", "gpt2", "--layers", "1", "--batch", "4", "--seq", "64", "-o", str(path)]) == 0
    count = (50257 + 1024) * 768 + 12 * 768**2 + 13 * 768 + 2 * 768  # embeddings, a layer, the last norm
    assert f"{count:,} parameters" in capsys.readouterr().err
    trace = triosim.load_trace(path)
    assert (trace.model, trace.batch_size, trace.gpu, trace.times) == ("gpt2", 4, "H100-SXM", "predicted")
    assert all(one.predicted_by for one in trace.operators if one.seconds)
    assert run(["simulate", str(path), "-p", "ddp", "-n", "2", "--quiet"]) == 0


def test_models_differ_by_what_is_chosen() -> None:
    flash, math = (triosim.describe("gpt3-125m", layers=1, sequence=256, attention=one) for one in ("flash", "math"))
    names = [{operator.name for operator in trace.operators} for trace in (flash, math)]
    assert "aten::_scaled_dot_product_flash_attention" in names[0] - names[1]
    assert {"aten::baddbmm", "aten::_softmax", "aten::bmm", "aten::native_dropout"} <= names[1]
    kept = triosim.describe("gpt3-125m", layers=1, sequence=256, dropout=0)
    assert "aten::native_dropout" not in {operator.name for operator in kept.operators}


def test_megatron_without_its_fused_softmax_scales_and_masks_by_kernels_of_their_own() -> None:
    """Scores and probabilities are cast, the scores scaled and masked; each has a gradient."""
    fused, unfused = (
        triosim.describe(f"gpt3-125m(fused_softmax={said})", layers=1, sequence=64, attention="math", dtype="fp16")
        for said in ("true", "false")
    )
    more = Counter(one.name for one in unfused.operators) - Counter(one.name for one in fused.operators)
    of_the_mask = {"aten::ones": 1, "aten::triu": 1, "aten::masked_fill_": 1, "aten::masked_fill": 1}
    assert more == {"aten::_to_copy": 4, "aten::mul": 2} | of_the_mask


def test_composer_computes_the_loss_of_mpt_again_for_each_of_two_metrics() -> None:
    """Without gradients: one backward pass of a loss, which is a fused one."""
    step = triosim.describe("mpt-125m", layers=1, sequence=64, precision="mixed")
    names = [operator.name for operator in step.operators]
    assert (names.count("aten::_log_softmax"), names.count("aten::_log_softmax_backward_data")) == (2, 0)
    assert names.count("fused::cross_entropy_loss") == 1


def test_bert_predicts_words_of_masked_tokens_or_where_an_answer_is() -> None:
    """Of 2 samples of 40 tokens: logits of 80, of 12 masked ones, or 2 scores a token and 4 rows of the loss."""
    models = {"bert-base": (80, 30522), "bert-base(masked=0.15)": (12, 30522), "bert-base(head=answers)": (4, 40)}
    for name, rows in models.items():
        step = triosim.describe(name, batch=2, sequence=40, layers=1)
        (loss,) = [one for one in step.operators if one.name == "aten::_log_softmax"]
        assert loss.inputs[0].shape == rows


def test_images_have_their_channels_first_unless_they_are_said_to_have_them_last() -> None:
    first, last = (triosim.describe("resnet18", **how) for how in ({}, {"image_layout": "channels-last"}))
    said = [
        {bool(one.attributes.get("channels_last")) for one in t.operators if "convolution" in one.name}
        for t in (first, last)
    ]
    assert said == [{False}, {True}]
    with pytest.raises(OptionError, match="no convolutions of images"):
        triosim.describe("gpt2", image_layout="channels-last")
