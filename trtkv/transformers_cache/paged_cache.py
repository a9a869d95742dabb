"""PagedCache: a Cache of transformers over the pools of a manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import proxy, ref

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from trtkv.errors import InvalidInputError
from trtkv.executor.model_spec import read_model_spec
from trtkv.executor.paged_kv_cache import PagedKvCache
from trtkv.kernels.kernel_launch import Backend
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.transformers_cache.cached_batch import CachedBatch, CachedStep

_CACHE_NAMES = ("cache", "past_key_values")
"""What transformers calls the cache among the arguments of a model; older releases know the second name only."""


class PagedCache(Cache):
    """Keys and values of a model in paged memory, with prefixes found again by later ``generate`` calls.

    ``model.generate(..., past_key_values=cache)`` with any batch of prompts, padded on the left: what the cache knows
    of each prompt is not computed again. Prompts and outputs of a call can be found by the next one. Calls must not
    overlap; a manager serves one cache, and must have been made for the model (create_kv_cache_manager).

    The model keeps its own attention. Hooks on it tell the cache which tokens a pass computes; ``close`` removes them.
    """

    def __init__(self, model: torch.nn.Module, manager: KVCacheManager, backend: Backend = None) -> None:
        spec = read_model_spec(model)
        limits = manager.settings.limits
        device = next(model.parameters()).device
        self.manager = manager
        self.num_prompt_tokens = 0
        """Tokens of all prompts so far."""
        self.num_reused_tokens = 0
        """Those that were found in the cache."""
        self._max_rows = limits.max_num_sequences
        self._windows = spec.attention_windows
        self._memory = PagedKvCache(manager, spec, str(device), self._max_rows, backend)
        self._batch: CachedBatch | None = None
        self._step: CachedStep | None = None
        self._next_request_id = 0
        super().__init__(layers=[_PagedLayer(self, layer_idx) for layer_idx in range(len(self._windows))])
        own = ref(self)  # the model's hooks must not keep the cache alive

        def before(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            cache = own()
            return cache._begin(arguments, named) if cache is not None and _is_meant(cache, named) else None

        def after(_: torch.nn.Module, __: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            cache = own()
            if cache is not None and _is_meant(cache, named):
                cache._end(is_computed=output is not None)

        self._hooks = [
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after, with_kwargs=True, always_call=True),
        ]

    # -- what transformers asks ---------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before those of the pass under way; 0 between passes, so that ``generate`` gives whole prompts."""
        return 0 if self._step is None else self._step.first_column

    def reset(self) -> None:
        """Give up the sequences of the last call; what they computed stays for reuse."""
        if self._batch is not None:
            batch, self._batch = self._batch, None
            batch.release()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let each row continue another one, as beam search does."""
        if self._batch is not None:
            self._batch.reorder(beam_idx.tolist(), self._windows)

    def crop(self, tokens_to_remove: int) -> None:
        """Not possible; assisted generation needs a cache of its own."""
        raise InvalidInputError(f"cannot remove {tokens_to_remove} tokens: generate without assistant")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Not possible."""
        raise InvalidInputError(f"cannot repeat rows {repeats} times: pass the whole batch as input_ids")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Not possible."""
        raise InvalidInputError(f"cannot keep only rows {indices.tolist()}: pass the smaller batch as input_ids")

    def close(self) -> None:
        """Give up the last sequences and take the hooks off the model; the cache must not be used afterwards."""
        self.reset()
        for hook in self._hooks:
            hook.remove()

    # -- passes -------------------------------------------------------------------------------------------

    def _begin(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before a pass: blocks for its tokens. Its input is cut to the columns that some row does not know."""
        tokens, mask = named.get("input_ids"), named.get("attention_mask")
        if arguments or tokens is None:
            raise InvalidInputError("a model with a PagedCache takes its arguments by name, input_ids among them")
        if mask is not None and (not isinstance(mask, torch.Tensor) or mask.dim() != 2):
            raise InvalidInputError("a PagedCache takes an attention_mask [rows, columns], or none")
        batch = self._batch
        if batch is not None and _continues(batch, tokens, mask, named.get("position_ids")):
            batch.grow(tokens.tolist())
        else:
            batch = self._start(tokens, mask)
        step = batch.begin_step()
        num_columns = step.num_columns - step.first_column
        positions = step.positions.to(tokens.device)
        _check_positions(named.get("position_ids"), positions)
        self._step = step
        changed = {"input_ids": tokens[:, -num_columns:], "position_ids": positions.clamp(min=0)}
        if named.get("cache_position") is not None:
            changed["cache_position"] = named["cache_position"][-num_columns:]
        return arguments, named | changed

    def _start(self, tokens: torch.Tensor, mask: torch.Tensor | None) -> CachedBatch:
        """Admit the prompts of another call."""
        self.reset()
        pads = _count_padding(tokens, mask)
        prompts = [row[pad:] for row, pad in zip(tokens.tolist(), pads, strict=True)]
        if len(prompts) > self._max_rows:
            raise InvalidInputError(f"{len(prompts)} rows, the manager was made for {self._max_rows} sequences")
        longest = max(len(prompt) for prompt in prompts)
        if longest > self.manager.max_sequence_length:
            raise InvalidInputError(
                f"a prompt of {longest} tokens exceeds max_sequence_length {self.manager.max_sequence_length}"
            )
        self._batch = CachedBatch(self._memory, prompts, pads, self._next_request_id)
        self._next_request_id += len(prompts)
        self.num_prompt_tokens += sum(len(prompt) for prompt in prompts)
        self.num_reused_tokens += self._batch.num_reused_tokens
        return self._batch

    def _end(self, *, is_computed: bool) -> None:
        """After a pass, or after it failed: then nothing of the call is believed."""
        if self._step is None or self._batch is None:
            return
        self._step = None
        if is_computed:
            self._batch.end_step()
        else:
            self.reset()

    def get_step(self) -> CachedStep:
        """The pass under way."""
        if self._step is None:
            raise InvalidInputError("a PagedCache works with the model it was made for, called as a whole")
        return self._step

    def update_layer(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values of the pass under way and return those of all columns, [rows, heads, columns, dim]."""
        return self.get_step().update(layer_idx, self._windows[layer_idx], key, value)


class _PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A layer as transformers sees it; what it has is in the cache."""

    is_sliding = False  # all columns are handed out, and the model's mask hides those outside its window

    def __init__(self, cache: PagedCache, layer_idx: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache: PagedCache = proxy(cache)
        self._layer_idx = layer_idx
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See PagedCache.update_layer."""
        return self._cache.update_layer(self._layer_idx, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns of keys, and the first of them."""
        return self._cache.get_step().num_columns, 0

    def get_seq_length(self) -> int:
        """See PagedCache.get_seq_length."""
        return self._cache.get_seq_length()

    def get_max_length(self) -> int:
        """No limit on columns: padding takes no memory."""
        return -1

    get_max_cache_shape = get_max_length  # its name in older releases

    def offload(self) -> None:
        """Nothing to do: the manager moves blocks between device and host."""

    prefetch = offload


def _is_meant(cache: PagedCache, named: Mapping[str, Any]) -> bool:
    return any(named.get(name) is cache for name in _CACHE_NAMES)


def _continues(
    batch: CachedBatch, tokens: torch.Tensor, mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> bool:
    """Whether tokens go on where a batch ends, and are not the whole of other prompts.

    A mask covers all columns so far; transformers leaves it out where nothing is padded, but gives positions.
    """
    num_rows, num_new = tokens.shape
    if mask is not None:
        num_before = mask.shape[1] - num_new
    elif position_ids is not None:
        num_before = int(position_ids[..., 0].min())
    else:
        num_before = batch.num_columns
    if num_before == 0:
        return False
    if num_before != batch.num_columns or num_rows != batch.size:
        raise InvalidInputError(
            f"{num_rows} rows go on after column {num_before}, the cache holds {batch.size} rows of "
            f"{batch.num_columns} columns; give whole prompts, with an attention_mask of their size"
        )
    return True


def _count_padding(tokens: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Columns of padding before each row."""
    if mask is None:
        return [0] * len(tokens)
    if mask.shape != tokens.shape:
        raise InvalidInputError(
            f"attention_mask of {mask.shape[1]} columns for {tokens.shape[1]} of a cache that holds nothing; give "
            "whole prompts"
        )
    is_token = mask != 0
    if not bool(is_token[:, -1].all()) or bool((is_token.cumsum(1) > 0).ne(is_token).any()):
        raise InvalidInputError('rows must be padded on the left: tokenizer.padding_side = "left"')
    counts: list[int] = (~is_token).sum(1).tolist()
    return counts


def _check_positions(given: torch.Tensor | None, positions: torch.Tensor) -> None:
    """Blocks are found by their tokens, so positions must count a row's tokens from 0; those in padding are free."""
    if given is not None and bool((given[..., -positions.shape[1] :] != positions)[positions >= 0].any()):
        raise InvalidInputError("position_ids must count the tokens of each row from 0, padding left out")
