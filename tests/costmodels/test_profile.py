from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.checks import FEATURES as CHECKED
from costmodels.linear import LinearCost
from costmodels.profile import COLUMNS, FEATURES, METADATA_KEY, Profile, ProfileError, read_profile, write_profile

ABOUT = {"source": "a test"}

SETTING = {
    "device": "toy",
    "model": "tiny",
    "dtype": "bf16",
    "tensor_parallel": 1,
    "engine": "vllm",
    "engine_version": "0.1",
}

SHAPES = [
    (n, n * context * (n > 0), context * (n > 0), int(c > 0), c, c * 100 * (c > 0) + c * (c + 1) // 2)
    for n in (0, 1, 8, 32)
    for context in (64, 900)
    for c in (0, 16, 300)
    if n + c
]


def table(**changes: Any) -> pd.DataFrame:
    """Steps of SLOWeave's linear model, two repeats each."""
    cost = LinearCost()
    rows = [
        (*SETTING.values(), *shape, cost.step_ns(*shape) + repeat, repeat)
        for shape in dict.fromkeys(SHAPES)
        for repeat in (0, 1)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).assign(**changes)


def refusal(frame: pd.DataFrame, **about: Any) -> str:
    with pytest.raises(ProfileError) as e:
        Profile(frame, {**ABOUT, **about}, "p.parquet")
    return str(e.value)


def with_row(row: int, **values: Any) -> pd.DataFrame:
    frame = table()
    for column, value in values.items():
        frame.loc[row, column] = value
    return frame


def test_the_features_are_those_of_cost_models() -> None:
    assert FEATURES == CHECKED


def test_a_profile_survives_the_file(tmp_path: Path) -> None:
    frame = table(host_ns=1000, energy_mj=5)
    path = tmp_path / "p.parquet"
    written = write_profile(path, frame, {**ABOUT, "estimated": True, "notes": ["a note"]})
    read = read_profile(path)
    pd.testing.assert_frame_equal(read.frame, written.frame)
    assert (read.provenance, read.warnings, read.setting) == (written.provenance, written.warnings, SETTING)
    assert read.estimated
    assert read.warnings[0] == "a note"
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]


def test_equal_tables_make_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_profile(tmp_path / name, table(), ABOUT)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_clean_profile_has_no_warnings() -> None:
    profile = Profile(table(), ABOUT)
    assert profile.warnings == ()
    assert not profile.outlier.any()
    assert profile.non_monotone == 0


def test_shapes_are_groups() -> None:
    frame = table().sample(frac=1, random_state=3).reset_index(drop=True)
    profile = Profile(frame, ABOUT)
    assert len(set(profile.shape.tolist())) == len(set(SHAPES))
    assert frame.groupby(list(FEATURES)).ngroups == frame.assign(g=profile.shape).groupby([*FEATURES, "g"]).ngroups


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_neighbours_are_what_comparing_every_pair_finds(seed: int) -> None:
    frame = table().query("repeat == 0").reset_index(drop=True)
    frame["duration_ns"] *= np.random.default_rng(seed).choice([1, 1, 1, 2, 7], len(frame))
    profile = Profile(frame, ABOUT)
    shapes, ns = frame[list(FEATURES)].to_numpy(), frame["duration_ns"].to_numpy()
    no_more = (shapes[:, None] <= shapes).all(axis=2)  # of anything in the first row than in the second
    falls = (no_more & (ns[:, None] > ns)).any(axis=0).sum()
    odd = (no_more & (ns[:, None] > 5 * ns)).any(axis=1)
    assert profile.non_monotone == falls
    assert profile.outlier.tolist() == odd.tolist()


def test_a_first_step_that_compiles_is_flagged_and_kept() -> None:
    profile = Profile(with_row(0, duration_ns=30_000_000_000), ABOUT)
    assert np.flatnonzero(profile.outlier).tolist() == [0]
    assert len(profile) == len(table())
    assert any("row 0 with 30 s" in w for w in profile.warnings)


def test_constant_columns_are_named() -> None:
    profile = Profile(table().query("n_prefill == 0"), ABOUT)
    assert [w.split()[0] for w in profile.warnings] == ["n_prefill", "prefill_tokens", "prefill_pairs"]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (table().drop(columns="duration_ns"), "column duration_ns is missing"),
        (
            table().rename(columns={"duration_ns": "duration_ms"}),
            "column duration_ns is missing; duration_ms is not ns",
        ),
        (table(colour="red"), "unknown column colour"),
        (table().iloc[:0], "no rows"),
        (table().iloc[:2], "all 2 rows are one shape (n_decode = 0"),
        (with_row(4, duration_ns=0), "duration_ns of row 4 is 0; a step takes at least 1 ns"),
        (with_row(4, duration_ns=-5), "duration_ns of row 4 is -5"),
        (with_row(3, n_decode=-1), "n_decode of row 3 is -1; it must not be negative"),
        (table(host_ns=-1), "host_ns of row 0 is -1"),
        (table(duration_ns=np.nan), "duration_ns of row 0 is nan; it must be a whole number of ns"),
        (table(n_decode="many"), "n_decode holds what is not a number"),
        (table(device=""), "device of row 0 is ''; it must be a name"),
        (table(device=["a", *["b"] * (len(table()) - 1)]), "device is both 'a' and 'b'"),
        (pd.concat([table(), table().iloc[6:8]]), f"rows 6 and {len(table())} are the same shape and repeat"),
        (with_row(0, n_prefill=0), "row 0 contradicts itself: it neither decodes nor prefills"),
        (with_row(2, decode_context=7), "row 2 contradicts itself: it has context of decodes but decodes nothing"),
        (with_row(10, decode_context_max=10**6), "decode_context_max is more than decode_context"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(frame: pd.DataFrame, says: str) -> None:
    message = refusal(frame)
    assert message.startswith("p.parquet: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (table(duration_ns=table()["duration_ns"] / 1e6), "another unit?"),
        (table(duration_ns=table()["duration_ns"] // 10**6 + 1), "these look like µs or ms"),
        (table(duration_ns=table()["duration_ns"] // 10**3), "these look like µs or ms"),
        (table(duration_ns=table()["duration_ns"] // 50), "not in µs"),
        (
            table(duration_ns=np.where(table()["n_prefill"] > 0, 10**6, 1) * table()["duration_ns"]),
            "the units look mixed",
        ),
    ],
    ids=["ms as fractions", "ms", "µs", "long µs", "mixed"],
)
def test_other_units_are_noticed(frame: pd.DataFrame, says: str) -> None:
    assert says in refusal(frame)


def test_the_source_must_be_said() -> None:
    assert "must say the source" in refusal(table(), source=" ")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "format version 2 is not 1, the one read here; it was written by a newer version"),
        ({"version": "x"}, "format version 'x' is not 1"),
        ({"units": {"duration_ns": "ms", "host_ns": "ns", "energy_mj": "mJ"}}, "duration_ns is declared in 'ms'"),
        ({"provenance": 3}, "the provenance is not an object"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = tmp_path / "p.parquet"
    write_profile(path, table(), ABOUT)
    stored = pq.read_table(path)
    about = {**json.loads(stored.schema.metadata[METADATA_KEY]), **changes}
    pq.write_table(stored.replace_schema_metadata({METADATA_KEY: json.dumps(about).encode()}), path)
    with pytest.raises(ProfileError, match=r"^p\.parquet: ") as e:
        read_profile(path)
    assert says in str(e.value)


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    text, other, missing = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.parquet"
    text.write_text("hello")
    table().to_parquet(other)
    for path, says in ((text, "not a parquet file"), (other, "says nothing of a profile"), (missing, "No such file")):
        with pytest.raises(ProfileError, match=says):
            read_profile(path)
