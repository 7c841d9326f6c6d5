"""An option's value is checked and converted once, as its declaration says, and what is wrong is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.config import Option
from triosim.config.file import read_config
from triosim.errors import OptionError


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (Option("batch_size", "whole"), "4", 4),
        (Option("backup", "whole", least=0), 0, 0),
        (Option("price", "number"), "2.5", 2.5),
        (Option("dropout", "probability"), 0, 0.0),
        (Option("links", "flag"), "yes", True),
        (Option("reshard", "choice", choices=("auto", "yes", "no")), True, "yes"),  # what YAML makes of yes
        (Option("bucket_size", "bytes"), "25 MiB", 26_214_400.0),
        (Option("bucket_size", "bytes", least=1000), "25 B", 25.0),
        (Option("bucket_size", "bytes", least=1000), "0", 0.0),
        (Option("bucket_size", "bytes", least=1000), 1, 1.0),
        (Option("host_overhead", "time", choices=("trace",)), "5 us", 5e-6),
        (Option("host_overhead", "time", choices=("trace",)), "trace", "trace"),
        (Option("host_overhead", "time", longest_bare=1e-3), 5, 5.0),
        (Option("host_overhead", "time", longest_bare=1e-3), "5 s", 5.0),
        (Option("host_overhead", "time", longest_bare=1e-3), "5e-6", 5e-6),
        (Option("gradient_dtype", "dtype"), "bf16", "bfloat16"),
        (Option("stages", "names"), "layer1, layer2", ("layer1", "layer2")),
        (Option("stages", "names"), ["layer1"], ("layer1",)),
        (Option("options", "mapping"), ["a=1", "b=x=y"], {"a": "1", "b": "x=y"}),
        (Option("topology", "file"), Path("cluster.yaml"), "cluster.yaml"),
        (Option("schedule", "text", "gpipe"), None, "gpipe"),  # None is the default
    ],
)
def test_a_value_is_converted(option: Option, value: Any, expected: Any) -> None:
    assert option.parse(value) == expected


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        (Option("batch_size", "whole"), 0, "--batch-size: 0 is less than 1; give 1 or more"),
        (Option("batch_size", "whole"), True, "--batch-size: 'True' is not a whole number; give 1 or more"),
        (Option("batch_size", "whole"), 1.5, "--batch-size: '1.5' is not a whole number; give 1 or more"),
        (Option("price", "number"), "inf", "--price: 'inf' is not a number above 0; give one such as 2.5"),
        (
            Option("training", "flag", flag="--inference"),
            3,
            "--inference: '3' is neither yes nor no; give one of the two",
        ),
        (
            Option("fold", "flag", flag="--fold/--no-fold"),
            "x",
            "--fold: 'x' is neither yes nor no; give one of the two",
        ),
        (Option("bucket_size", "bytes"), "-1", "--bucket-size: -1 is not a number of bytes; give 0 or more"),
        (
            Option("bucket_size", "bytes", least=1000),
            "25",
            "--bucket-size: 25 has no unit, and is taken for bytes; write '25 MB', or '25 B'",
        ),
        (
            Option("bucket_size", "bytes"),
            "25 MX",
            "--bucket-size: unknown unit 'MX' in '25 MX'; write a size such as '25 MB' or '1 GiB'",
        ),
        (
            Option("host_overhead", "time", choices=("trace", "none")),
            -1,
            "--host-overhead: -1 is not a time of 0 or more; give 'trace', 'none' or a time like '5 us'",
        ),
        (
            Option("host_overhead", "time", longest_bare=1e-3),
            "5",
            "--host-overhead: 5 has no unit, and would be seconds; write for example '5 us'",
        ),
        (Option("stages", "names"), 3, "--stages: '3' is not a list of names; write a,b"),
        (Option("options", "mapping", flag="--option"), ["a=1", "a=2"], "--option: 'a' is given twice"),
    ],
)
def test_what_a_value_cannot_be_is_said_with_the_option_and_a_remedy(option: Option, value: Any, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        option.parse(value)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"parallel": ["dp"]},
            r"--parallel: '\['dp'\]' names no parallelism; write ddp or dp=2,tp=4; in Python also {'dp': 2",
        ),
        ({"topology": 4}, "--topology: '4' is not a topology; give a file, or a name such as dgx-h100; in Python also"),
        ({"gpu": 4}, "--gpu: '4' is neither a name nor a path"),
        ({"operator_times": 3}, "--operator-times: '3' is neither a name nor a path"),
        ({"network": 7}, "--network: '7' is neither a name nor a class"),
        ({"collective": 5}, "--collective: '5' is neither a name nor a class"),
        ({"schedule": ["1f1b"]}, r"--schedule: '\['1f1b'\]' is "),
        ({"recompute": {"full": 1}}, "--recompute: .* is not a word"),
        ({"options": {"bucket_size": 1}}, "no part of this run takes 'bucket_size'; give --bucket-size"),
    ],
)
def test_a_value_of_another_type_is_one_line(given: dict[str, Any], said: str) -> None:
    trace = Path(__file__).parents[2] / "examples" / "traces" / "vgg13_a100_fake.json.gz"
    with pytest.raises(OptionError, match=said):
        triosim.simulate(str(trace), **{"parallel": "ddp", "gpus": 2, **given})


def test_what_is_no_trace_is_one_line() -> None:
    with pytest.raises(OptionError, match="'8' is no trace"):
        triosim.simulate(8)  # type: ignore[arg-type]


def test_describe_knows_its_keywords_and_those_of_simulate() -> None:
    with pytest.raises(OptionError, match="no keyword 'seq'; did you mean 'sequence'"):
        triosim.describe("gpt2", seq=2)
    with pytest.raises(OptionError, match="no keyword 'batch_size'; did you mean 'batch'"):
        triosim.describe("gpt2", batch_size=2)


def test_the_help_of_python_speaks_of_keywords() -> None:
    doc = triosim.simulate.__doc__ or ""
    assert "training: Simulate the backward pass and the optimizer too; False is inference" in doc
    assert "and autocast to dtype. [plain]" in doc
    assert "Repeatable" not in doc
    assert "--" not in doc.partition("All options:")[2]
    assert "options: Options of" in doc


@pytest.mark.parametrize(
    ("key", "fix"), [("inference", "training: no"), ("slow_gpus", "under 'conditions'"), ("model", "write 'trace'")]
)
def test_a_key_that_is_something_else_is_pointed_at_it(key: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"{key}: 1\n")
    with pytest.raises(OptionError, match=fix):
        read_config(str(tmp_path / "run.yaml"))
