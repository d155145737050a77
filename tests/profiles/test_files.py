"""Delay profiles on disk: what is written is read back, what is damaged is named."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from seqgc import Rehearsal, Setting, parse_scheme, replay
from seqgc.errors import ParameterError, ProfileError, ProfileWarning
from seqgc.profiles import (
    MOST_TIMES,
    DelayProfile,
    ProfileMeta,
    lint,
    read_profile,
    write_profile,
)

META = ProfileMeta(
    base_load=1 / 256,
    alpha=1.12,
    batch=2048,
    model="cnn",
    provider="AWS Lambda",
    region="München",
    recorded_at="2022-08-01T00:00:00Z",
    source="a test",
)
TIMES = np.array([[0.1, 1 / 3], [2e-9, 38.5]])


@pytest.mark.filterwarnings("ignore::seqgc.errors.ProfileWarning")
@given(
    times=arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=2),
        elements=st.floats(min_value=1e-9, max_value=1e15),
    ),
    suffix=st.sampled_from([".npz", ".csv"]),
)
def test_every_profile_is_read_back_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory, times: np.ndarray, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("p") / f"profile{suffix}"
    write_profile(DelayProfile.from_times(times, meta=META), path=path)
    back = read_profile(path)
    np.testing.assert_array_equal(back.times, times, strict=True)
    assert back.meta == META
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_npz_keeps_who_did_not_answer_and_a_csv_refuses_to_forget_it(tmp_path: Path) -> None:
    status = np.array([[0, 1], [0, 0]], dtype=np.int8)
    profile = DelayProfile(times=TIMES, status=status)
    write_profile(profile, path=tmp_path / "a.npz")
    np.testing.assert_array_equal(read_profile(tmp_path / "a.npz").status, status)
    with pytest.raises(ProfileError, match=r"a\.csv.*did not answer"):
        write_profile(profile, path=tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
@pytest.mark.parametrize("shape", [(2**18, 1), (2, 40_000)])
def test_large_profiles_are_read_back_in_both_formats(
    tmp_path: Path, suffix: str, shape: tuple[int, int]
) -> None:
    write_profile(DelayProfile.from_times(np.ones(shape)), path=tmp_path / f"a{suffix}")
    assert read_profile(tmp_path / f"a{suffix}").times.shape == shape


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_what_could_not_be_read_is_not_written(tmp_path: Path, suffix: str) -> None:
    profile = DelayProfile.from_times(np.ones((1, MOST_TIMES + 1)))
    with pytest.raises(ProfileError, match=f"a file holds at most {MOST_TIMES} times"):
        write_profile(profile, path=tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())
    assert MOST_TIMES >= 10_000 * 300


def test_a_line_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    profile = DelayProfile.from_times(np.full((1, 2**19), 1 / 3))
    with pytest.raises(ProfileError, match="has fewer than 8388608 characters"):
        write_profile(profile, path=tmp_path / "a.csv")


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_files_follow_the_umask(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    before = os.umask(0o027)
    try:
        write_profile(DelayProfile.from_times(TIMES), path=path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# ---- what people have ---------------------------------------------------------------------------

MISSING = [[1.0, 2.0], [3.0, 3.0], [3.0, 3.0]]  # as many seconds as the slowest answer


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "NA", '"NA"', "null"])
def test_an_empty_cell_is_a_worker_that_did_not_answer(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"1,2\n3,{cell}\n{cell or 'nan'},{cell}\n")
    profile = read_profile(path)
    assert profile.status.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert profile.times.tolist() == MISSING
    answered = profile.select_rounds(0, stop=2)
    run = replay(
        Setting(scheme=parse_scheme("uncoded", n=2)), Rehearsal(profile=answered, alpha=0.0)
    )
    assert run.runtime_s == 2.0 + 3.0
    assert {found.rule for found in lint(profile)} == {"no-answer", "mostly-failed"}
    write_profile(profile, path=tmp_path / "b.csv")
    back = read_profile(tmp_path / "b.csv")
    np.testing.assert_array_equal(back.times, profile.times)
    np.testing.assert_array_equal(back.status, profile.status)


TABLE = [[0.5, 0.7], [0.6, 0.9], [0.8, 0.4]]
LINES = "0.5,0.7", "0.6,0.9", "0.8,0.4"


@pytest.mark.parametrize(
    ("header", "indices"),
    [
        ("w0,w1", None),
        ('"V1","V2"', None),
        ("0,1", None),
        (None, "012"),
        ("round,w0,w1", "123"),
        ("Round,1,2", "579"),
        ('"","V1","V2"', ['"1"', '"2"', '"3"']),
        (",0,1", "012"),
        ("step,w0,w1", ["10", "20", "30"]),
        ("index,w0,w1", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        (",w0,w1", "123"),
    ],
)
def test_a_line_of_names_and_a_column_of_round_numbers_are_no_times(
    tmp_path: Path, header: str | None, indices: Sequence[str] | None
) -> None:
    lines = [f"{i},{line}" for i, line in zip(indices, LINES, strict=True)] if indices else LINES
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["# a comment", *([header] if header else []), *lines]) + "\n")
    assert read_profile(path).times.tolist() == TABLE


@pytest.mark.parametrize("first", [1.0, 5.0])
def test_a_worker_whose_seconds_count_up_is_kept_if_its_name_says_so(
    tmp_path: Path, first: float
) -> None:
    times = np.array([[first, 0.5], [first + 1, 0.6], [first + 2, 0.7]])
    write_profile(DelayProfile.from_times(times), path=tmp_path / "a.csv")
    np.testing.assert_array_equal(read_profile(tmp_path / "a.csv").times, times)
    path = tmp_path / "b.csv"
    for text, expected in (
        ("1,9\n9,1\n", [[1.0, 9.0], [9.0, 1.0]]),
        ("1,2\n2,1\n", [[1.0, 2.0], [2.0, 1.0]]),
        ("w0,w1\n1,0.5\n2,0.7\n", [[1.0, 0.5], [2.0, 0.7]]),
    ):
        path.write_text(text)
        assert read_profile(path).times.tolist() == expected


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_times_that_look_like_milliseconds_are_asked_about(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_profile(DelayProfile.from_times([[900.0, 1100.0, 1200.0]]), path=path)
    with pytest.warns(ProfileWarning, match="took 1100 s: are these milliseconds"):
        read_profile(path)
    write_profile(DelayProfile.from_times([[900.0, 1000.0, 1200.0]]), path=path)
    read_profile(path)  # warnings are errors here


def test_meta_given_replaces_meta_read(tmp_path: Path) -> None:
    write_profile(DelayProfile.from_times(TIMES, meta=META), path=tmp_path / "a.npz")
    assert read_profile(tmp_path / "a.npz", meta=ProfileMeta(batch=1)).meta == ProfileMeta(batch=1)


def test_comments_and_empty_lines_of_a_csv_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("# seconds\n\n1.0, 2\r\n# between\n3,4e-1\n")
    np.testing.assert_array_equal(read_profile(path).times, [[1.0, 2.0], [3.0, 0.4]])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at least one"),
        ("# nothing else\n", "at least one"),
        ("1,2\n3\n", r"row 1 \(line 2\) has 1 columns, the lines above 2"),
        ("# c\n1,2\n3,x\n", r"row 1, column 1 .*line 3.*got 'x'"),
        ("1,\n2,\n", "column 1 is empty in every line: .*comma"),
        ("1,2\n1_0,3\n", "row 1, column 0 .*line 2.*got '1_0'"),
        ("1;2\n", "line 1 has semicolons"),
        ("1\t2\n", "line 1 has tabs"),
        ("w0,w1\n", "no times"),
        ("w0,w1\n1,2,3\n", r"row 0 \(line 2\) has 3 columns, the lines above 2"),
        ("nan,nan\n", "no worker answered"),
        ("1,0.5,0.7\n2,0.6,0.7\n", "column 0 counts up from 1"),
        ("7,0.5\n8,0.6\n9,0.6\n", "column 0 counts up from 7"),
        ("trial,w0\n1,0.5\n2,0.6\n", "column 0 counts up from 1"),
        ("1,2,3\n0.5,0.6,0.7\n", "line 1 counts the columns"),
        (",1,2\n1,0.5,0.7\n", "line 1 counts the columns"),
        ("round,worker,seconds\n1,1,0.5\n1,2,0.6\n", "line 1 names a column 'worker'"),
        (",w0\n0.5,0.7\n", "line 2: 0.5 is not the number of a round"),
        ("1,2\n-3,4\n", "row 1, column 0 .*got -3.0"),
        ("1,2\ninf,4\n", "row 1, column 0 .*got inf"),
        (
            '# seqgc-meta: {"schema": 2, "colour": 1}\n1\n',
            "schema 2, this seqgc reads schema 1: update seqgc",
        ),
        ('# seqgc-meta: {"colour": 2}\n1\n', "keys among"),
        (
            '# seqgc-meta: {"alpha": "x"}\n1\n',
            "`meta`: alpha must be int or float or NoneType; got 'x'",
        ),
        ('# seqgc-meta: {"batch": 1.5}\n1\n', "`meta`: batch must be int or NoneType; got 1.5"),
        (
            '# seqgc-meta: {"base_load": true}\n1\n',
            "`meta`: base_load must be int or float; got True",
        ),
        ('# seqgc-meta: {"model": 3}\n1\n', "`meta`: model must be str; got 3"),
        ('# seqgc-meta: {"base_load": -1}\n1\n', "`base_load` must be a finite number >= 0"),
        ("# seqgc-meta: {\n1\n", "not a delay profile"),
        ("# seqgc-meta: {}\n" * 2 + "1\n", "line 2: a second `meta` line"),
        ("\n" * 2**17 + "\n1\n", "more than 131072 lines are empty"),
        (("1," * 2**19 + "1\n") * 9, "line 8: a file may have at most 4194304 times"),
    ],
)
def test_a_damaged_csv_is_refused_with_its_name_and_place(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=rf"bad\.csv: .*{reason}"):
        read_profile(path)


def test_a_damaged_npz_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    write_profile(DelayProfile.from_times(TIMES), path=path)
    whole = path.read_bytes()
    for content in (b"", b"not a zip archive", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ProfileError, match=r"bad\.npz: not a delay profile"):
            read_profile(path)


def test_an_npz_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, times=TIMES)
    with pytest.raises(ProfileError, match=r"lacks the arrays \['status', 'meta'\]"):
        read_profile(path)
    np.savez(path, times=TIMES, status=np.zeros((2, 2), np.int8), meta=np.array(json.dumps([])))
    with pytest.raises(ProfileError, match="JSON object"):
        read_profile(path)
    with path.open("wb") as file:
        np.save(file, TIMES)
    with pytest.raises(ProfileError, match="bare array"):
        read_profile(path)


def test_pickled_objects_in_an_npz_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "evil.npz"
    np.savez(path, times=np.array([{"a": 1}], dtype=object), status=0, meta="{}")
    with pytest.raises(ProfileError, match=r"evil\.npz: not a delay profile"):
        read_profile(path)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"times": TIMES.astype(str)}, "`times` must be an array of numbers"),
        ({"times": TIMES + 1j}, "`times` must be an array of numbers"),
        ({"times": TIMES > 1}, "`times` must be an array of numbers"),
        ({"times": TIMES.ravel()}, r"`times` must be a matrix .*got shape \(4,\)"),
        ({"times": np.where(TIMES > 1, np.nan, TIMES)}, "row 1, column 1 .*got nan"),
        ({"times": -TIMES}, "row 0, column 0 .*got -0.1"),
        ({"status": np.zeros((2, 3), np.int8)}, "`status` must be integers of the shape"),
        ({"status": np.zeros((2, 2))}, "`status` must be integers"),
        ({"meta": np.array(1)}, "`meta` must be one text; got int64"),
        ({"meta": np.array(["{}"])}, r"`meta` must be one text; .*shape \(1,\)"),
        ({"meta": np.array('{"schema": 9}')}, "schema 9, this seqgc reads schema 1"),
    ],
)
def test_an_npz_of_other_types_or_shapes_is_refused_with_its_name(
    tmp_path: Path, arrays: dict[str, np.ndarray], reason: str
) -> None:
    path = tmp_path / "odd.npz"
    good = {"times": TIMES, "status": np.zeros((2, 2), np.int8), "meta": np.array("{}")}
    np.savez(path, **(good | arrays))
    with pytest.raises(ProfileError, match=rf"odd\.npz: .*{reason}"):
        read_profile(path)


def test_a_flipped_byte_is_refused_or_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "flipped.npz"
    write_profile(DelayProfile.from_times(TIMES, meta=META), path=path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            back = read_profile(path)
        except ProfileError:
            refused += 1
        else:
            np.testing.assert_array_equal(back.times, TIMES, err_msg=f"byte {place}")
            assert back.meta == META, f"byte {place}"
    assert refused > len(whole) / 9


def test_a_spreadsheets_byte_order_mark_is_no_part_of_the_first_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1.5,2\n", encoding="utf-8-sig")
    assert read_profile(path).times.tolist() == [[1.5, 2.0]]


def test_an_absent_file_and_an_unknown_suffix_are_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"gone\.npz: not a delay profile: No such file"):
        read_profile(tmp_path / "gone.npz")
    with pytest.raises(ParameterError, match=r"\.npz or \.csv"):
        read_profile(tmp_path / "a.txt")
    with pytest.raises(ParameterError, match=r"\.npz or \.csv"):
        write_profile(DelayProfile.from_times(TIMES), path=tmp_path / "a")


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    write_profile(DelayProfile.from_times(TIMES, meta=META), path=path)

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_profile(DelayProfile.from_times(TIMES * 2), path=path)
    np.testing.assert_array_equal(read_profile(path).times, TIMES)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_recorded_profiles_are_read(recorded_profiles: Path) -> None:
    profile = read_profile(recorded_profiles / "cnn-canada-batch2048-load0.000-30rounds-d.csv")
    assert profile.times.shape == (30, 256)
    assert not profile.status.any()
