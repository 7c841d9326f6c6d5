"""Files that users give: damaged ones, ones that expand without end, and JSON that hides a mistake."""

from __future__ import annotations

import gzip
import json
import resource
import time
from pathlib import Path

import pytest

from triosim.errors import OptionError, TraceError, TriosimError, shortened
from triosim.input_files.limits import EXPANDED_BYTES, VARIABLE, Limit
from triosim.input_files.reading import head, read_bytes, read_json, read_object


def test_a_compressed_file_is_read_as_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "named_as_it_likes"
    path.write_bytes(gzip.compress(b'{"a": 1}'))
    assert head(path) == b'{"a": 1}'
    assert read_json(path) == {"a": 1}


def test_a_file_that_expands_without_end_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(500):
            file.write(bytes(1 << 20))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(TraceError, match=r"bomb\.json\.gz: .* bytes out of a file that small are more than the limit"):
        read_bytes(path)
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * EXPANDED_BYTES.most / 1024


def test_text_that_repeats_itself_may_expand(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(b"operator,seconds\nmm,1.5\n" * 100_000))
    assert len(read_bytes(path)) == 2_400_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"gpu": "A100", "gpu": "H100"}', "has the key 'gpu' twice in one object; keep one of the two"),
        ('{"a": {"b": 1, "b": 2}}', "has the key 'b' twice"),
        (f'{{"a": {"9" * 5000}}}', "holds a number of 5000 digits"),
        (f'{{"a": 1{"0" * 400}}}', "holds a number of 401 digits"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a": 1', "line 1 column 8: is not JSON: Expecting ',' delimiter; the file seems to be truncated"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_json_that_hides_a_mistake_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"x\.json") as caught:
        read_object(path, OptionError)
    assert said in str(caught.value)


def test_a_long_number_in_a_name_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"hash 123456789012345678901234567890": "9" * 40}))
    assert read_json(path) == {"hash 123456789012345678901234567890": "9" * 40}


def test_a_limit_is_named_with_the_way_to_raise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Limit(1000, "links")
    links.check(1000, "mesh")
    with pytest.raises(TriosimError, match=f"mesh: 2,500 links are more than the limit of 1,000; set {VARIABLE}=3 "):
        links.check(2500, "mesh")
    monkeypatch.setenv(VARIABLE, "3")
    links.check(2500, "mesh")
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(OptionError, match=f"{VARIABLE}: 'many' is not a factor; give a number such as 10"):
        links.check(2500, "mesh")


def test_long_values_are_cut_in_the_middle() -> None:
    text = shortened(f"--gpus: {'9' * 5000} is not a number; give one")
    assert len(text) < 220
    assert text.startswith("--gpus: 999")
    assert text.endswith("999 is not a number; give one")
    assert "9 ... 9" in text
    assert len(shortened("word " * 1000)) <= 400
