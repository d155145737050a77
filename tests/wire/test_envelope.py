"""Frames in JSON: what any JSON library writes is read, and nothing that is not base64."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import WireError
from seqgc.wire import envelope_bytes, from_json, to_json, to_mapping

frames = st.binary(max_size=200)


@pytest.mark.parametrize("length", range(8))
def test_frames_of_all_lengths_come_back(length: int) -> None:
    frame = bytes(range(250, 250 + length)) if length < 6 else bytes(length)
    assert from_json(to_json(frame)) == frame
    assert from_json(to_mapping(frame)) == frame


@given(frame=frames)
def test_any_json_library_reads_what_is_written(frame: bytes) -> None:
    body = to_json(frame)
    assert json.loads(body) == to_mapping(frame)
    assert base64.b64decode(json.loads(body)["frame"], validate=True) == frame
    assert len(body) == envelope_bytes(len(frame))


@given(
    frame=frames,
    indent=st.none() | st.integers(0, 12),
    reverse=st.booleans(),
    escape=st.booleans(),
    as_text=st.booleans(),
)
def test_what_any_json_library_writes_is_read(
    frame: bytes, indent: int | None, reverse: bool, escape: bool, as_text: bool
) -> None:
    mapping = to_mapping(frame)
    if reverse:
        mapping = dict(reversed(mapping.items()))
    text = json.dumps(mapping, indent=indent)
    if escape:  # as some libraries do, lest it end a script
        text = text.replace("/", "\\/").replace("=", "\\u003d")
    assert from_json(text if as_text else text.encode()) == frame
    assert from_json(json.loads(text)) == frame


@given(frame=st.binary(min_size=1, max_size=100), data=st.data())
def test_a_changed_character_is_read_as_json_would_or_refused(
    frame: bytes, data: st.DataObject
) -> None:
    body = bytearray(to_json(frame))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = from_json(bytes(body))
    except WireError as error:
        line = str(error)
        assert "\n" not in line
    else:
        parsed = json.loads(body)
        assert parsed["seqgc"] == 1
        assert base64.b64decode(parsed["frame"], validate=True) == found


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"", "Input data was truncated"),
        (b"null", "Expected `object`, got `null`"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"seqgc":2,"frame":""}', "version 2, not 1"),
        (b'{"seqgc":true,"frame":""}', "Expected `int`, got `bool` - at `$.seqgc`"),
        (b'{"seqgc":1}', "missing required field `frame`"),
        (b'{"seqgc":1,"frame":[1]}', "Expected `str`, got `array` - at `$.frame`"),
        (b'{"seqgc":1,"frame":"","more":1}', "unknown field `more`"),
        (b'{"seqgc":1,"frame":"' + b"[" * 100_000, "truncated"),
        (b'{"seqgc":1,"frame":' + b"[" * 100_000, "Expected `str`, got `array`"),
        (b'{"seqgc":1,"frame":"AA A="}', "not base64"),
        (b'{"seqgc":1,"frame":"AAA"}', "not base64"),
        (b'{"seqgc":1,"frame":"AA==AA=="}', "not base64"),
        (b'{"seqgc":1,"frame":"\xff"}', "envelope is not JSON"),
        (b'{"seqgc":1,"frame":"', "truncated"),
        (b'{"seqgc":1,"frame":"}', "truncated"),
        ('{"seqgc":1,"frame":"é"}', "characters"),
    ],
)
def test_what_is_no_envelope_is_refused_in_one_line(body: bytes | str, rule: str) -> None:
    with pytest.raises(WireError) as caught:
        from_json(body)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["bytes", "text", "object", "reversed"])
def test_a_frame_above_the_limit_is_refused_before_it_is_decoded(form: str) -> None:
    frame = bytes(3_000_000)
    mapping = to_mapping(frame)
    body = {
        "bytes": to_json(frame),
        "text": to_json(frame).decode(),
        "object": mapping,
        "reversed": json.dumps(dict(reversed(mapping.items()))),
    }[form]
    assert from_json(body, max_bytes=len(frame)) == frame
    tracemalloc.start()
    with pytest.raises(WireError, match="more than 1500000 bytes, the limit of a frame"):
        from_json(body, max_bytes=1_500_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (4_500_000 if form in ("text", "reversed") else 100_000)


WITHOUT = "import sys; sys.modules['pybase64'] = None; import pytest; sys.exit(pytest.main())"


def test_all_of_this_holds_without_pybase64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is absent, the standard library's base64 takes its place."""
    options = "-q -p no:cacheprovider -p no:xdist -k 'not without_pybase64'"
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{options} {Path(__file__).as_posix()}")
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "passed" in done.stdout
