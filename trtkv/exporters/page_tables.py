"""Page tables for attention kernels: FlashInfer, FlashAttention and vLLM, FlexAttention and transformers.

All functions read one window of a manager for a batch of requests and change neither. Rows come in the order of the
request ids, the beams of a request one after the other. A page is a slot of the window's primary pools, so one table
serves every layer of the window (``KVCacheManager.get_buffers`` has the pages in its first dimension). Positions that
a sliding window has passed or that were never loaded have no page. Arrays are int32 unless said otherwise; arrays
given in ``out`` are checked before anything is written, and what is returned are views of their filled part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtkv.common import RequestId, WindowSize, ceil_div
from trtkv.errors import InvalidInputError
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.kv_cache_index import NULL_ENTRY

NO_SLOT: Final = -1
"""Entry of a slot mapping for which nothing is to be written."""


class FlashInferTables(NamedTuple):
    """What FlashInfer's wrappers plan with: the pages of row i are ``kv_indices[kv_indptr[i] : kv_indptr[i + 1]]``.

    ``kv_last_page_len``: tokens in the last page, 1 to tokens per block; 0 in a row without tokens, which has no page.
    """

    kv_indptr: NDArray[np.int32]
    kv_indices: NDArray[np.int32]
    kv_last_page_len: NDArray[np.int32]


class BlockTable(NamedTuple):
    """Pages as a rectangle: ``block_table`` [rows, width] and ``seq_lens`` [rows], in tokens.

    Column i belongs to tokens i * tokens_per_block and following, whether or not the window still holds them.
    """

    block_table: NDArray[np.int32]
    seq_lens: NDArray[np.int32]


class FlexTables(NamedTuple):
    """Both directions, -1 for none: ``page_table`` [rows, width] and ``physical_to_logical`` [rows, primary blocks]."""

    page_table: NDArray[np.int32]
    physical_to_logical: NDArray[np.int32]


class _Row(NamedTuple):
    """Pages of one beam: ``slots`` by position, of which the first ``num_gone`` are not to be read."""

    slots: NDArray[np.int32]
    num_gone: int
    kv_len: int


def export_flashinfer(
    manager: KVCacheManager,
    request_ids: Sequence[RequestId],
    window_size: WindowSize,
    *,
    kv_lens: Sequence[int] | None = None,
    out: FlashInferTables | None = None,
) -> FlashInferTables:
    """Ragged pages. ``kv_lens``: tokens per request, by default all that the sequence has room for.

    Pages that left the window are left out, so a row is shorter than its sequence by whole pages at the front.
    """
    rows = _read_rows(manager, request_ids, window_size, kv_lens)
    counts = [len(row.slots) - row.num_gone for row in rows]
    num_rows, num_pages = len(rows), sum(counts)
    if out is None:
        out = FlashInferTables(_new(num_rows + 1), _new(num_pages), _new(num_rows))
    _check_room("kv_indptr", out.kv_indptr, num_rows + 1)
    _check_room("kv_indices", out.kv_indices, num_pages)
    _check_room("kv_last_page_len", out.kv_last_page_len, num_rows)
    out.kv_indptr[0] = 0
    np.cumsum(counts, out=out.kv_indptr[1 : num_rows + 1])
    width = manager.tokens_per_block
    for index, row in enumerate(rows):
        out.kv_indices[out.kv_indptr[index] : out.kv_indptr[index + 1]] = row.slots[row.num_gone :]
        out.kv_last_page_len[index] = (row.kv_len - 1) % width + 1 if row.kv_len else 0
    return FlashInferTables(out.kv_indptr[: num_rows + 1], out.kv_indices[:num_pages], out.kv_last_page_len[:num_rows])


def export_block_table(
    manager: KVCacheManager,
    request_ids: Sequence[RequestId],
    window_size: WindowSize,
    *,
    kv_lens: Sequence[int] | None = None,
    width: int | None = None,
    padding: int = 0,
    out: BlockTable | None = None,
) -> BlockTable:
    """Pages as FlashAttention and vLLM (``padding=0``) or transformers (``padding=-1``) read them.

    ``width``: columns, by default those of the longest row; with ``out`` all its columns. Everything without a page,
    after the end of a row or out of the window, is ``padding``; rows of ``out`` after the last one are left alone.
    """
    rows = _read_rows(manager, request_ids, window_size, kv_lens)
    longest = max((len(row.slots) for row in rows), default=0)
    if out is None:
        width = longest if width is None else width
        out = BlockTable(np.empty((len(rows), width), np.int32), _new(len(rows)))
    _check_table("block_table", out.block_table, len(rows), longest)
    _check_room("seq_lens", out.seq_lens, len(rows))
    _fill(out.block_table, rows, padding)
    out.seq_lens[: len(rows)] = [row.kv_len for row in rows]
    return BlockTable(out.block_table[: len(rows)], out.seq_lens[: len(rows)])


def export_slot_mapping(
    manager: KVCacheManager,
    request_ids: Sequence[RequestId],
    window_size: WindowSize,
    num_new_tokens: Sequence[int],
    *,
    kv_lens: Sequence[int] | None = None,
    out: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Where the newest tokens of each request go: page * tokens_per_block + offset, int64, row after row.

    ``num_new_tokens``: per request, the last of its ``kv_lens``. Entries of ``out`` after the filled part become
    NO_SLOT, so that a padded batch writes nowhere.
    """
    rows = _read_rows(manager, request_ids, window_size, kv_lens)
    if len(num_new_tokens) != len(request_ids):
        raise InvalidInputError(f"{len(num_new_tokens)} counts of new tokens for {len(request_ids)} requests")
    per_row = np.repeat(num_new_tokens, [_beam_width(manager, request_id) for request_id in request_ids])
    width = manager.tokens_per_block
    parts = [np.empty(0, np.int64)]
    for row, count in zip(rows, per_row.tolist(), strict=True):
        first = row.kv_len - count
        if not 0 <= count <= row.kv_len or first < row.num_gone * width:
            raise InvalidInputError(
                f"{count} new tokens in a row of {row.kv_len}, of which {row.num_gone * width} left the window; "
                "count only tokens that have a page"
            )
        positions = np.arange(first, row.kv_len, dtype=np.int64)
        parts.append(row.slots[positions // width].astype(np.int64) * width + positions % width)
    mapping = np.concatenate(parts)
    if out is None:
        return mapping
    _check_room("out", out, len(mapping), np.int64)
    out[: len(mapping)] = mapping
    out[len(mapping) :] = NO_SLOT
    return out[: len(mapping)]


def export_flex(
    manager: KVCacheManager,
    request_ids: Sequence[RequestId],
    window_size: WindowSize,
    *,
    kv_lens: Sequence[int] | None = None,
    width: int | None = None,
) -> FlexTables:
    """Pages in both directions, for a block mask of FlexAttention with blocks of ``tokens_per_block``.

    ``physical_to_logical[row, page]`` is the position of a page in the row. Padding is -1.
    """
    rows = _read_rows(manager, request_ids, window_size, kv_lens)
    num_pages = manager.window_sizes_metadata[window_size].allotted_primary_blocks
    longest = max((len(row.slots) for row in rows), default=0)
    page_table = np.empty((len(rows), longest if width is None else width), np.int32)
    _check_table("page_table", page_table, len(rows), longest)
    _fill(page_table, rows, NULL_ENTRY)
    logical = np.full((len(rows), num_pages), NULL_ENTRY, np.int32)
    for index, row in enumerate(rows):
        logical[index, row.slots[row.num_gone :]] = np.arange(row.num_gone, len(row.slots), dtype=np.int32)
    return FlexTables(page_table, logical)


def _read_rows(
    manager: KVCacheManager,
    request_ids: Sequence[RequestId],
    window_size: WindowSize,
    kv_lens: Sequence[int] | None,
) -> list[_Row]:
    if manager.block_manager.get_window_block_manager(window_size).settings.is_recurrent_state:
        raise InvalidInputError(f"window {window_size} holds recurrent states, which have no pages")
    if kv_lens is None:
        kv_lens = [manager.get_token_count(request_id) for request_id in request_ids]
    if len(kv_lens) != len(request_ids):
        raise InvalidInputError(f"{len(kv_lens)} lengths for {len(request_ids)} requests; give one for each")
    rows: list[_Row] = []
    for request_id, kv_len in zip(request_ids, kv_lens, strict=True):
        rows.extend(_read_request(manager, request_id, window_size, kv_len))
    return rows


def _read_request(manager: KVCacheManager, request_id: RequestId, window_size: WindowSize, kv_len: int) -> list[_Row]:
    sequence = manager.get_sequence(request_id)
    num_removed = sequence.get_num_front_blocks_removed(window_size)
    num_pages = ceil_div(kv_len, manager.tokens_per_block)
    rows = []
    for slots in sequence.get_rows(window_size):
        if kv_len < 0 or num_pages > len(slots):
            raise InvalidInputError(
                f"request {request_id} has {len(slots)} blocks of {manager.tokens_per_block} tokens in window "
                f"{window_size}, {kv_len} tokens do not fit; give a length that was added"
            )
        pages = np.asarray(slots[:num_pages], dtype=np.int32)
        missing = np.flatnonzero(pages == NULL_ENTRY)
        num_gone = max(num_removed, int(missing[-1]) + 1 if len(missing) else 0)
        rows.append(_Row(pages, min(num_gone, num_pages), kv_len))
    return rows


def _beam_width(manager: KVCacheManager, request_id: RequestId) -> int:
    return manager.get_sequence(request_id).beam_width


def _fill(table: NDArray[np.int32], rows: Sequence[_Row], padding: int) -> None:
    table[: len(rows)] = padding
    for index, row in enumerate(rows):
        table[index, row.num_gone : len(row.slots)] = row.slots[row.num_gone :]


def _new(size: int) -> NDArray[np.int32]:
    return np.empty(size, np.int32)


def _check_room(name: str, array: NDArray[Any], needed: int, dtype: type[np.generic] = np.int32) -> None:
    if array.dtype != dtype or array.ndim != 1 or len(array) < needed:
        raise InvalidInputError(
            f"{name} must be {np.dtype(dtype)} with one dimension and at least {needed} entries, "
            f"it is {array.dtype} {array.shape}"
        )


def _check_table(name: str, array: NDArray[Any], num_rows: int, width: int) -> None:
    if array.dtype != np.int32 or array.ndim != 2 or array.shape[0] < num_rows or array.shape[1] < width:
        raise InvalidInputError(
            f"{name} must be int32 with at least {num_rows} rows of {width} columns, it is {array.dtype} {array.shape}"
        )
