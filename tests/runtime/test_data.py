"""`runtime.data`: sequences by number, and files that are refused before training."""

from __future__ import annotations

import os
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from profiles.errors import Contradiction, InvalidFile, InvalidSpec
from runtime.data import token_files as tokenised_room
from runtime.data.sources import Source, source
from runtime.data.synthetic import Synthetic

TOKENS: NDArray[np.int64] = np.arange(1000, dtype=np.int64) * 7 % 300
KINDS = ("synthetic", "tokens.npy", "tokens.bin", "words.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    np.save(made / "tokens.npy", TOKENS)
    TOKENS.astype("<u2").tofile(made / "tokens.bin")
    (made / "words.txt").write_text("the café is open — " * 40, encoding="utf-8")
    return made


def opened(folder: Path, kind: str, *, seed: int = 0, seq_len: int = 16) -> Source:
    where = kind if kind == "synthetic" else folder / kind
    return source(where, vocab=300, seq_len=seq_len, seed=seed)


@given(
    kind=st.sampled_from(KINDS),
    first=st.integers(0, 2**40),
    count=st.integers(0, 12),
    cut=st.integers(0, 12),
    seed=st.integers(0, 2**63),
)
def test_sequences_do_not_depend_on_how_they_are_read(
    folder: Path, kind: str, first: int, count: int, cut: int, seed: int
) -> None:
    together = opened(folder, kind, seed=seed).sequences(first, count)
    cut = min(cut, count)
    again = opened(folder, kind, seed=seed)
    after = again.sequences(first + cut, count - cut)  # the later ones first
    before = again.sequences(first, cut)
    assert torch.equal(together, torch.cat([before, after]))
    assert together.dtype == torch.int64
    assert together.shape == (count, 17)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_differ_from_each_other_and_between_seeds(
    folder: Path, kind: str
) -> None:
    some = opened(folder, kind).sequences(0, 32)
    assert len({tuple(row) for row in some.tolist()}) > 16
    assert not torch.equal(some, opened(folder, kind, seed=1).sequences(0, 32))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_file_is_cropped_everywhere(folder: Path, kind: str) -> None:
    found = opened(folder, kind, seq_len=8).sequences(0, 4000)
    content = (folder / kind).read_bytes()
    whole = list(content) if kind.endswith("txt") else TOKENS.tolist()
    places = {tuple(whole[at : at + 9]) for at in range(len(whole) - 8)}
    assert {tuple(row) for row in found.tolist()} == places


def test_the_shortest_file_has_one_crop(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", TOKENS[:17])
    rows = opened(tmp_path, "short.npy").sequences(5, 3)
    assert rows.tolist() == [TOKENS[:17].tolist()] * 3


def test_text_is_its_bytes(folder: Path) -> None:
    row = opened(folder, "words.txt", seq_len=64).sequences(0, 1)[0]
    assert "café".encode() in bytes(row.tolist())
    with pytest.raises(Contradiction, match="vocabulary of 256"):
        source(folder / "words.txt", vocab=255, seq_len=8, seed=0)


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "u8", ">u2"])
def test_an_array_may_hold_any_integers(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "some.npy", np.full(50, 100, dtype=dtype))
    assert opened(tmp_path, "some.npy").sequences(0, 2).unique().tolist() == [100]


def test_a_large_vocabulary_is_stored_in_32_bits(tmp_path: Path) -> None:
    tokens = np.arange(70_000, dtype="<u4")
    tokens.tofile(tmp_path / "large.bin")
    data = source(tmp_path / "large.bin", vocab=70_000, seq_len=69_999, seed=0)
    assert torch.equal(data.sequences(3, 1)[0], torch.arange(70_000))


def test_files_are_mapped_and_not_read(folder: Path) -> None:
    for kind in KINDS[1:]:
        assert isinstance(vars(opened(folder, kind))["_tokens"], np.memmap)


BAD: dict[str, tuple[Any, str]] = {
    "empty.npy": (b"", "empty"),
    "empty.bin": (b"", "empty"),
    "empty.txt": (b"", "empty"),
    "short.txt": (b"0123456789abcdef", "too short"),
    "short.bin": (b"\1\0" * 16, "too short"),
    "short.npy": (TOKENS[:16], "too short"),
    "odd.bin": (b"\1" * 101, "no whole number of uint16"),
    "cut.npy": (b"\x93NUMPY\x01\x00\x76\x00{'descr", "no array of tokens"),
    "text.npy": (b"once upon a time, in a land", "no array of tokens"),
    "floats.npy": (np.zeros(99), "float64 of shape"),
    "flags.npy": (np.zeros(99, dtype=bool), "bool of shape"),
    "table.npy": (np.zeros((9, 99), dtype=np.int32), "int32 of shape"),
    "scalar.npy": (np.int32(4), "int32 of shape"),
    "objects.npy": (np.array([{}] * 99, dtype=object), "no array of tokens"),
    "foreign.npy": (np.append(TOKENS, 300), "token 300 at position 1,000"),
    "negative.npy": (np.append(-1, TOKENS), "token -1 at position 0"),
    "foreign.bin": (np.append(TOKENS, 512).astype("<u2"), "token 512 at position"),
    "wide.bin": (TOKENS.astype("<u4"), "32-bit"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, reason = BAD[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif name.endswith(".bin"):
        content.tofile(path)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises((InvalidFile, Contradiction), match=reason) as caught:
        source(path, vocab=300, seq_len=16, seed=0)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", one=TOKENS)
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    with pytest.raises(InvalidFile, match="archive"):
        opened(tmp_path, "many.npy")


@pytest.mark.parametrize("name", ["gone.txt", "gone.npy", "gone.bin", "synthtic"])
def test_a_missing_file_says_what_may_be_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidFile, match="not there; name a file"):
        opened(tmp_path, name)


def test_folders_and_pipes_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("folder.npy", "a folder"), ("pipe", "regular file")):
        with pytest.raises(InvalidFile, match=reason):
            opened(tmp_path, name)


def test_every_token_is_looked_at_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenised_room, "_CHUNK", 64)
    np.save(tmp_path / "late.npy", np.append(TOKENS, [0, 999]))
    with pytest.raises(Contradiction, match="token 999 at position 1,001"):
        opened(tmp_path, "late.npy")
    checked = source(tmp_path / "late.npy", vocab=300, seq_len=16, seed=0, checked=True)
    assert checked.sequences(0, 1).shape == (1, 17)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(InvalidSpec, match="seed"):
        source("synthetic", vocab=300, seq_len=16, seed=seed)


@given(vocab=st.integers(2, 300_000), seed=st.integers(0, 2**64 - 1))
def test_synthetic_tokens_have_their_own_successors(vocab: int, seed: int) -> None:
    data = Synthetic(vocab=vocab, seq_len=4, seed=seed)
    rows = data.sequences(9, 3)
    assert 0 <= int(rows.min()) <= int(rows.max()) < vocab
    token, after = rows[0, :2].tolist()
    successors = data.successors(token).tolist()
    assert after in successors
    assert len(set(successors)) == len(successors) == min(8, vocab)


def test_synthetic_entropy_is_what_the_stream_has() -> None:
    """H(next | token) counted over a long stream; the count's own bias is 0.009."""
    data = Synthetic(vocab=64, seq_len=4000, seed=5)
    rows = data.sequences(0, 50).numpy()
    counts = np.zeros((64, 64))
    np.add.at(counts, (rows[:, :-1].ravel(), rows[:, 1:].ravel()), 1)
    assert (np.count_nonzero(counts, axis=1) == 8).all()
    total = counts.sum()
    seen = counts[counts > 0]
    joint = -(seen / total * np.log(seen / total)).sum()
    often = counts.sum(axis=1) / total
    conditional = joint + (often * np.log(often)).sum()
    assert conditional == pytest.approx(data.entropy_nats, abs=0.01)
    assert often == pytest.approx(1 / 64, rel=0.1)  # every token is as frequent


def test_synthetic_entropy_is_far_below_a_guess() -> None:
    data = Synthetic(vocab=512, seq_len=8, seed=0)
    assert data.entropy_nats < log(512) / 3
    assert "1.684" in data.about


def test_two_tokens_are_the_least() -> None:
    with pytest.raises(InvalidSpec, match="vocabulary of 2"):
        source("synthetic", vocab=1, seq_len=4, seed=0)


def test_synthetic_data_stays_what_it_is() -> None:
    """A later version must resume the runs of this one."""
    data = source("synthetic", vocab=512, seq_len=7, seed=1)
    assert data.sequences(1000, 1).tolist() == [
        [352, 119, 151, 241, 368, 209, 393, 102]
    ]
