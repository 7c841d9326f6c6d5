"""A result as plain values, as JSON, as pandas tables, and read back."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hand_made_run import recording, result

from triosim.errors import OptionError, TriosimError
from triosim.pipeline.draws import draws_of
from triosim.results.result import Result


def violations(value: Any, schema: dict[str, Any], place: str = "result") -> list[str]:
    """Return where a value is not as the schema says; knows the words of JSON Schema that our schema uses."""
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}
    kinds["null"] = type(None)
    found = []
    choices = [violations(value, one, place) for one in schema.get("anyOf", ())]
    if choices and all(choices):
        found += choices[-1]
    if "const" in schema and value != schema["const"]:
        found.append(f"{place} is not {schema['const']}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place} is not one of {schema['enum']}")
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or isinstance(value, bool)):
        return [*found, f"{place} is no {kind}"]
    if kind == "object":
        properties = schema.get("properties", {})
        found += [f"{place} lacks {key}" for key in schema.get("required", ()) if key not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{place} has an unknown {key}" for key in value if key not in properties]
        for key in properties.keys() & value.keys():
            found += violations(value[key], properties[key], f"{place}.{key}")
    elif kind == "array":
        if len(value) < schema.get("minItems", 0):
            found.append(f"{place} is too short")
        for index, item in enumerate(value):
            found += violations(item, schema.get("items", {}), f"{place}[{index}]")
    elif kind in ("number", "integer"):
        if value < schema.get("minimum", value) or (
            "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]
        ):
            found.append(f"{place} is {value}")
    elif kind == "string" and "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{place} is {value!r}")
    return found


def published_schema() -> dict[str, Any]:
    text = resources.files("triosim.reports").joinpath("result.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def test_result_json_is_as_its_schema_says() -> None:
    assert violations(json.loads(result().to_json()), published_schema()) == []


def test_the_spread_of_several_draws_is_as_its_schema_says() -> None:
    drawn = json.loads(replace(result(), data=replace(result().data, draws=draws_of([1.0, 2.0]))).to_json())
    assert violations(drawn, published_schema()) == []
    assert violations({**drawn, "draws": {"mean_s": 1.0}}, published_schema())


def test_the_schema_refuses_what_is_no_result() -> None:
    values = result().to_dict()
    values["ranks"][0]["compute_s"] = -1.0
    del values["links"][0]["bytes"]
    values["extra"] = 1
    assert len(violations(values, published_schema())) == 3


def test_the_names_that_others_rely_on_are_there() -> None:
    values = result().to_dict()
    assert values["schema"] == "triosim-result/1"
    assert {"step_time_s", "ranks", "layers", "collectives", "links", "inputs"} <= values.keys()
    assert values["ranks"][0].keys() >= {"rank", "compute_s", "communication_s", "exposed_communication_s", "idle_s"}
    assert values["collectives"][0].keys() >= {"kind", "group_size", "bytes", "count", "total_s"}
    assert values["links"][0].keys() >= {"name", "bytes", "utilisation"}


def test_inputs_say_what_is_needed_to_run_it_again() -> None:
    inputs = result().inputs
    assert inputs["versions"].keys() == {"triosim", "python", "numpy", "simpy"}
    assert inputs["config"]["parallel"] == "ddp"
    assert inputs["trace"] == {
        "model": "toy",
        "gpu": "NVIDIA H100",
        "batch_size": 32,
        "times": "measured",
        "operators": 5,
        "described": False,
        "stack": "as captured",
    }


def test_a_result_of_an_older_version_says_what_it_does_not_hold(tmp_path: Path) -> None:
    values = json.loads(result().to_json())
    for rank in values["ranks"]:
        del rank["waiting_s"], rank["exposed_waiting_s"], rank["finished_s"]
    (tmp_path / "old.json").write_text(json.dumps(values))
    old = Result.load(tmp_path / "old.json")
    assert old.step_time_s == result().step_time_s
    assert "without the waiting of each rank" in old.notes[-1]


def test_a_result_in_a_notebook_is_two_lines() -> None:
    lines = repr(result()).splitlines()
    assert lines[0] == "<Result of toy, ddp on 2 x NVIDIA H100, pair: 10.0 ms a step, 6,400 samples/s"
    assert "compute 80.0%, exposed communication 20.0%, waiting for a partner 0.0%, idle 0.0%" in lines[1]


@pytest.mark.parametrize("name", ["result.json", "result.json.gz"])
def test_a_result_that_is_saved_and_loaded_is_the_same(tmp_path: Path, name: str) -> None:
    saved = result()
    saved.save(tmp_path / name)
    assert Result.load(tmp_path / name) == saved
    assert [path.name for path in tmp_path.iterdir()] == [name]


def broken(key: str, value: object) -> str:
    values = result().to_dict()
    if value is None:
        del values[key]
    else:
        values[key] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ('{"schema": "triosim-result/1"', "is not JSON"),
        ("[]", "is not a result"),
        ('{"schema": "triosim-result/9"}', "'triosim-result/9'"),
        ('{"schema": "triosim-result/1"}', "has no 'step_time_s'"),
        (result().to_json().replace('"recorded": null', '"recorded": {"timeline": 3}'), "'recorded.timeline' is not"),
        (broken("links", None), "has no 'links'"),
        (broken("links", [{"name": "l", "bytes": 1}]), "has no 'links[0].utilisation'"),
        (broken("step_time_s", "long"), "'step_time_s' is 'long', which is not a number"),
        (broken("ranks", {}), "'ranks' is not a list"),
        (broken("ranks", [1]), "ranks[0] is not an object"),
        (broken("global_batch_size", True), "'global_batch_size'"),
        (broken("inputs", []), "'inputs'"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line_that_names_the_file(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TriosimError) as caught:
        Result.load(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_result_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TriosimError, match="No such file"):
        Result.load(tmp_path / "none.json")


def test_tables_hold_the_same_as_the_plain_values() -> None:
    pytest.importorskip("pandas")
    made = result()
    assert list(made.ranks["compute_s"]) == [rank.compute_s for rank in made.data.ranks]
    assert list(made.layers.columns) == ["layer", "forward_s", "backward_s", "optimizer_s", "total_s", "operators"]
    assert list(made.links["name"]) == ["forth", "back"]
    assert set(made.collectives["kind"]) == {"all_reduce", "send"}
    assert made.operators["total_s"].sum() == pytest.approx(made.ranks["compute_s"][0])
    by_rank = made.layers_by_rank
    assert list(by_rank["rank"]) == [0, 0, 1, 1]
    assert by_rank.groupby("rank")["total_s"].sum().tolist() == pytest.approx(list(made.ranks["compute_s"]))


def test_without_pandas_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TriosimError, match=r"pip install 'triosim\[pandas\]'"):
        _ = result().ranks


def test_a_result_without_a_timeline_says_so(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="timeline=True"):
        result(recording(timeline=False)).save_timeline(tmp_path / "timeline.json")
    assert not list(tmp_path.iterdir())


def test_printing_a_result_shows_its_main_figures() -> None:
    text = str(result())
    for figure in ("10.0 ms", "6,400 samples/s", "all_reduce", "forth", "50%", "a note of the plan"):
        assert figure in text


def test_a_notebook_is_shown_tables_in_which_names_cannot_be_markup() -> None:
    made = result(notes=("<script>",))
    html = made._repr_html_()
    assert "10.0 ms" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
