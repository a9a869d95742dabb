"""Page tables: kernel, reference and a loop agree, for lengths on and around block boundaries."""

from __future__ import annotations

import random

import pytest
import torch

from trtkv.errors import InvalidInputError
from trtkv.kernels.kernel_launch import Backend
from trtkv.kernels.page_table import build_page_table, create_page_table


@pytest.fixture(params=["kernel", "reference"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Both computations of every test."""
    return request.getfixturevalue("host_launcher") if request.param == "kernel" else "reference"


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 127, 128, 129, 300])
@pytest.mark.parametrize("tokens_per_block", [1, 4, 32])
def test_page_table_equals_a_loop(num_rows: int, tokens_per_block: int, backend: Backend) -> None:
    rng = random.Random(num_rows * 100 + tokens_per_block)
    width = rng.choice([3, 11, 140])
    for use_front, divisor, addend in [(False, 1, 0), (True, 6, 2)]:
        table = torch.randint(0, 10_000, (num_rows, 2, width), dtype=torch.int32)[:, 0]
        edge = [0, 1, tokens_per_block, width * tokens_per_block]
        lens = [rng.choice([*edge, rng.randint(0, width * tokens_per_block)]) for _ in range(num_rows)]
        front = [rng.randint(0, -(-length // tokens_per_block)) if use_front else 0 for length in lens]
        out = create_page_table(num_rows, width, "cpu")
        build_page_table(
            out, table, int32(lens), tokens_per_block, int32(front) if use_front else None, divisor, addend, backend
        )
        indptr, indices, last = [0], [], []
        for row, (length, skipped) in enumerate(zip(lens, front, strict=True)):
            pages = table[row, skipped : -(-length // tokens_per_block)].tolist()
            indices += [page // divisor + addend for page in pages]
            indptr.append(len(indices))
            last.append((length - 1) % tokens_per_block + 1 if pages else 0)
        assert out.kv_indptr.tolist() == indptr
        assert out.kv_indices[: len(indices)].tolist() == indices
        assert out.kv_last_page_len.tolist() == last
        assert not out.kv_indices[len(indices) :].any()


def test_length_follows_from_the_arrays() -> None:
    lens = [5, 8, 1, 16]
    out = create_page_table(4, 4, "cpu")
    build_page_table(out, torch.zeros((4, 4), dtype=torch.int32), int32(lens), 4)
    pages = out.kv_indptr.diff()
    assert (4 * (pages - 1) + out.kv_last_page_len).tolist() == lens


def test_no_rows_give_an_empty_table(backend: Backend) -> None:
    out = create_page_table(0, 4, "cpu")
    out.kv_indptr[:] = 3
    build_page_table(out, torch.zeros((0, 4), dtype=torch.int32), int32([]), 4, backend=backend)
    assert out.kv_indptr.tolist() == [0]


def test_arrays_that_are_too_small_or_of_another_type_are_refused() -> None:
    table = torch.zeros((2, 4), dtype=torch.int32)
    lens = int32([3, 3])
    with pytest.raises(InvalidInputError, match="kv_indices"):
        build_page_table(create_page_table(2, 3, "cpu"), table, lens, 4)
    with pytest.raises(InvalidInputError, match="kv_lens"):
        build_page_table(create_page_table(2, 4, "cpu"), table, lens.long(), 4)
    with pytest.raises(InvalidInputError, match="adjacent"):
        build_page_table(create_page_table(2, 4, "cpu"), table.repeat(1, 2)[:, ::2], lens, 4)
