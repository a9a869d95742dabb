"""LlmRequest: tokens, state and chunk position of one request, as the scheduler and the cache see it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from trtkv.checks import check_count, check_integer, check_member, check_type, refuse_bytes
from trtkv.common import RequestId, TokenId
from trtkv.errors import InvalidInputError
from trtkv.records.token_array import to_token_array

if TYPE_CHECKING:
    from trtkv.records.retention_config import KvCacheRetentionConfig


class LlmRequestState(IntEnum):
    """Stage of a request; schedulers compare the numbers. C++: LlmRequestState."""

    DISAGG_TRANS_ERROR = -1
    UNKNOWN = 0
    ENCODER_INIT = 1
    DISAGG_CONTEXT_WAIT_SCHEDULER = 7
    DISAGG_GENERATION_INIT = 8
    DISAGG_GENERATION_TRANS_IN_PROGRESS = 9
    CONTEXT_INIT = 10
    DISAGG_CONTEXT_INIT_AND_TRANS = 11
    DISAGG_GENERATION_TRANS_COMPLETE = 12
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    GENERATION_COMPLETE = 20
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = 21
    DISAGG_CONTEXT_COMPLETE = 22


_MAX_UINT64 = 2**64 - 1

_CONTEXT_STATES = frozenset({LlmRequestState.CONTEXT_INIT, LlmRequestState.DISAGG_CONTEXT_INIT_AND_TRANS})
_CHUNK_STATES = _CONTEXT_STATES | {
    LlmRequestState.DISAGG_GENERATION_INIT,
    LlmRequestState.DISAGG_GENERATION_TRANS_COMPLETE,
}
_CONTEXT_FINISHED_STATES = frozenset(
    {LlmRequestState.GENERATION_IN_PROGRESS, LlmRequestState.DISAGG_CONTEXT_INIT_AND_TRANS}
)
_GENERATION_STATES = frozenset(
    {
        LlmRequestState.GENERATION_IN_PROGRESS,
        LlmRequestState.GENERATION_TO_COMPLETE,
        LlmRequestState.DISAGG_GENERATION_TRANS_COMPLETE,
    }
)


class MultimodalInput(NamedTuple):
    """Where images and other items lie in a prompt, and their content hashes.

    ``hashes``: eight 32-bit words per item. ``positions`` and ``lengths``: first token and token count
    per item. ``uuids``: optional name per item. The run fields describe items scattered over several
    runs: the runs of item i are ``item_run_cu_offsets[i]`` to ``item_run_cu_offsets[i + 1]``.
    """

    hashes: Sequence[Sequence[int]]
    positions: Sequence[int] | None = None
    lengths: Sequence[int] | None = None
    uuids: Sequence[str | None] | None = None
    item_run_cu_offsets: Sequence[int] | None = None
    run_positions: Sequence[int] | None = None
    run_lengths: Sequence[int] | None = None


def to_extra_id_array(extra_ids: Iterable[int]) -> array[int]:
    """Extra ids as an unsigned 64-bit array."""
    refuse_bytes("extra ids", extra_ids)
    try:
        return array("Q", extra_ids)
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(f"extra ids must be unsigned 64-bit integers: {error}") from error


def check_salt(cache_salt: str) -> None:
    """Raise InvalidInputError for a salt that cannot be hashed."""
    check_encodable("cache_salt", cache_salt)


def check_encodable(name: str, value: str) -> None:
    """Raise InvalidInputError unless a value is a text that UTF-8 can write: half a surrogate pair is not."""
    check_type(name, value, str)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} is {value!r}, which UTF-8 cannot write; give another text") from error


class LlmRequest:
    """One request. Only methods of this class change it; managers and schedulers call them.

    Tokens are kept per beam as int32 arrays. A request starts in CONTEXT_INIT at position 0 with one
    chunk that covers the whole prompt. C++: LlmRequest.
    """

    __slots__ = (
        "_block_key_cache",
        "_context_chunk_size",
        "_context_current_position",
        "_estimated_reusable_tokens",
        "_num_draft_tokens",
        "_prepopulated_prompt_len",
        "_prompt_len",
        "_state",
        "_tokens",
        "alloc_new_blocks_per_request",
        "alloc_total_blocks_per_request",
        "beam_width",
        "cache_salt",
        "encoder_output_len",
        "encoder_tokens",
        "input_token_extra_ids",
        "is_dummy_request",
        "kv_cache_retention_config",
        "lora_task_id",
        "max_new_tokens",
        "missed_blocks_per_request",
        "multimodal_input",
        "request_id",
        "reused_blocks_per_request",
    )

    def __init__(
        self,
        request_id: RequestId,
        tokens: Iterable[TokenId],
        max_new_tokens: int = 0,
        *,
        beam_width: int = 1,
        input_token_extra_ids: Iterable[int] | None = None,
        lora_task_id: int | None = None,
        cache_salt: str | None = None,
        encoder_tokens: Iterable[TokenId] | None = None,
        encoder_output_len: int | None = None,
        num_draft_tokens: int = 0,
        is_dummy_request: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        multimodal_input: MultimodalInput | None = None,
        state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
    ) -> None:
        prompt = to_token_array(tokens)
        extra_ids = None if input_token_extra_ids is None else to_extra_id_array(input_token_extra_ids)
        if extra_ids is not None and len(extra_ids) != len(prompt):
            raise InvalidInputError(
                f"{len(extra_ids)} extra ids for {len(prompt)} tokens; give exactly one per prompt token"
            )
        self.request_id = check_integer("request_id", request_id)
        self.max_new_tokens = check_count("max_new_tokens", max_new_tokens)
        self.beam_width = check_count("beam_width", beam_width, 1)
        self.input_token_extra_ids = extra_ids
        self.lora_task_id = (
            None if lora_task_id is None else check_integer("lora_task_id", lora_task_id, 0, _MAX_UINT64)
        )
        if cache_salt is not None:
            check_salt(cache_salt)
        self.cache_salt = cache_salt
        self.encoder_tokens = None if encoder_tokens is None else to_token_array(encoder_tokens)
        self.encoder_output_len = (
            check_count("encoder_output_len", encoder_output_len)
            if encoder_output_len is not None
            else (0 if self.encoder_tokens is None else len(self.encoder_tokens))
        )
        self.is_dummy_request = is_dummy_request
        self.kv_cache_retention_config = kv_cache_retention_config
        self.multimodal_input = multimodal_input
        self._num_draft_tokens = check_count("num_draft_tokens", num_draft_tokens)
        self._tokens = [prompt] + [array("i", prompt) for _ in range(self.beam_width - 1)]
        self._prompt_len = len(prompt)
        self._state = check_member("state", state, LlmRequestState)
        self._context_current_position = 0
        self._context_chunk_size = len(prompt)
        self._prepopulated_prompt_len = 0
        self._estimated_reusable_tokens = 0
        self._block_key_cache: object = None  # owned by keys/key_builder.py; dropped when tokens are cut
        self.alloc_total_blocks_per_request = 0
        self.alloc_new_blocks_per_request = 0
        self.reused_blocks_per_request = 0
        self.missed_blocks_per_request = 0

    # -- tokens ---------------------------------------------------------------------------------

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt; a pause may enlarge it by tokens already generated."""
        return self._prompt_len

    def get_tokens(self, beam: int = 0) -> array[int]:
        """Prompt and generated tokens of a beam: the live array, to be read only."""
        return self._tokens[beam] if not beam else self._tokens[self._check_beam(beam)]

    def get_num_tokens(self, beam: int = 0) -> int:
        """Prompt plus generated tokens of a beam."""
        return len(self._tokens[beam] if not beam else self._tokens[self._check_beam(beam)])

    def _check_beam(self, beam: int) -> int:
        return check_integer("beam", beam, 0, len(self._tokens) - 1)

    def add_new_token(self, token: TokenId, beam: int = 0) -> None:
        """Append one generated token to a beam."""
        try:
            if beam < 0:
                raise IndexError
            self._tokens[beam].append(token)
        except (TypeError, OverflowError, IndexError) as error:
            raise InvalidInputError(
                f"token {token!r} cannot go to beam {beam} of {len(self._tokens)}; give a 32-bit integer and a beam"
            ) from error

    def add_new_tokens(self, beam_tokens: Sequence[Iterable[TokenId]]) -> None:
        """Append ``beam_tokens[b]`` to beam b."""
        added = [to_token_array(tokens) for tokens in beam_tokens]
        if len(added) > len(self._tokens):
            raise InvalidInputError(f"tokens for {len(added)} beams, the request has {len(self._tokens)}")
        for tokens, new in zip(self._tokens, added, strict=False):
            tokens.extend(new)

    def set_generated_tokens(self, beam_tokens: Sequence[Iterable[TokenId]]) -> None:
        """Replace everything after the prompt, beam by beam."""
        added = [to_token_array(tokens) for tokens in beam_tokens]
        if len(added) != len(self._tokens):
            raise InvalidInputError(f"tokens for {len(added)} beams, the request has {len(self._tokens)}")
        self._block_key_cache = None
        for tokens, new in zip(self._tokens, added, strict=True):
            del tokens[self._prompt_len :]
            tokens.extend(new)

    # -- state ----------------------------------------------------------------------------------

    @property
    def state(self) -> LlmRequestState:
        """Current stage."""
        return self._state

    def set_state(self, state: LlmRequestState) -> None:
        """Change the stage."""
        self._state = state if type(state) is LlmRequestState else check_member("state", state, LlmRequestState)

    @property
    def is_context_init_state(self) -> bool:
        """Whether the prompt is still to be computed, wholly or in part."""
        return self._state in _CONTEXT_STATES

    @property
    def is_disagg_generation_init_state(self) -> bool:
        """Whether the request waits for its prompt's cache from another server."""
        return self._state is LlmRequestState.DISAGG_GENERATION_INIT

    @property
    def is_generation_in_progress_state(self) -> bool:
        """Whether tokens are being generated."""
        return self._state in _GENERATION_STATES

    @property
    def is_context_finished(self) -> bool:
        """Whether the prompt counts as computed. C++: isContextFinished."""
        return self._state in _CONTEXT_FINISHED_STATES

    def has_reached_state(self, state: LlmRequestState) -> bool:
        """Whether the stage is this one or a later one, by number."""
        return self._state >= state

    # -- context position and chunks --------------------------------------------------------------

    @property
    def context_current_position(self) -> int:
        """Prompt tokens computed or taken from the cache so far."""
        return self._context_current_position

    def set_context_current_position(self, position: int) -> None:
        """Move the context position, 0 to the length of the prompt."""
        self._context_current_position = check_count("context position", position)

    @property
    def context_remaining_length(self) -> int:
        """Prompt tokens still to be computed."""
        return self._prompt_len - self._context_current_position

    @property
    def has_context_chunk(self) -> bool:
        """Whether the stage is one in which there is a chunk."""
        return self._state in _CHUNK_STATES

    @property
    def context_chunk_size(self) -> int:
        """Tokens of the next chunk; readable only while a context or generation-init stage lasts."""
        if self._state not in _CHUNK_STATES:
            raise InvalidInputError(
                f"request {self.request_id} is in {self._state.name} and has no context chunk; "
                "read it in a context stage"
            )
        return self._context_chunk_size

    def set_context_chunk_size(self, size: int) -> None:
        """Set the next chunk, cut to what remains of the prompt."""
        if self._state not in _CHUNK_STATES:
            raise InvalidInputError(
                f"request {self.request_id} is in {self._state.name}; a chunk can be set in a context stage only"
            )
        self._context_chunk_size = min(check_count("context chunk size", size), self.context_remaining_length)

    @property
    def is_first_context_chunk(self) -> bool:
        """Whether nothing after the prepopulated part has been computed."""
        return self._context_current_position == self._prepopulated_prompt_len

    @property
    def is_last_context_chunk(self) -> bool:
        """Whether the next chunk ends the prompt (also true for a request waiting for a remote prompt)."""
        return (
            self._state is LlmRequestState.DISAGG_GENERATION_INIT
            or self._context_current_position + self._context_chunk_size == self._prompt_len
        )

    def move_to_next_context_chunk(self) -> None:
        """Take the current chunk as computed and start the next one with size 0."""
        if self._state not in _CONTEXT_STATES:
            raise InvalidInputError(
                f"request {self.request_id} is in {self._state.name}; only a context stage has a next chunk"
            )
        self._context_current_position += self._context_chunk_size
        self._context_chunk_size = min(0, self.context_remaining_length)

    @property
    def prepopulated_prompt_len(self) -> int:
        """Prompt tokens found in the cache at admission."""
        return self._prepopulated_prompt_len

    def check_prepopulated_prompt_len(self, length: int, tokens_per_block: int) -> int:
        """The chunk that a cache match of this length would leave; raises if there is none. Changes nothing."""
        check_integer("prepopulated length", length)
        check_count("tokens_per_block", tokens_per_block, 1)
        if length >= self._prompt_len:
            raise InvalidInputError(
                f"prepopulated length {length} of request {self.request_id} leaves nothing of its "
                f"{self._prompt_len} prompt tokens to compute; give at most {self._prompt_len - 1}"
            )
        if length <= 0:
            return self._context_chunk_size
        chunk = self.context_chunk_size
        if length + chunk < self._prompt_len:
            chunk = (length + chunk) // tokens_per_block * tokens_per_block - length
        if chunk < 0:
            raise InvalidInputError(
                f"the chunk of request {self.request_id} would end before its {length} cached tokens; "
                f"give chunks of whole blocks of {tokens_per_block} tokens"
            )
        return chunk

    def set_prepopulated_prompt_len(self, length: int, tokens_per_block: int) -> None:
        """Record a cache match: move the position behind it and end the chunk on a block boundary."""
        chunk = self.check_prepopulated_prompt_len(length, tokens_per_block)
        self._prepopulated_prompt_len = length
        if length > 0:
            self._context_current_position = length
            self.set_context_chunk_size(chunk)

    @property
    def estimated_reusable_tokens(self) -> int:
        """Cached tokens that the last budget call counted on; 0 once the sequence is admitted."""
        return self._estimated_reusable_tokens

    def set_estimated_reusable_tokens(self, num_tokens: int) -> None:
        """Record what a budget call found."""
        self._estimated_reusable_tokens = check_count("estimated reusable tokens", num_tokens)

    # -- drafts, pause, counters --------------------------------------------------------------------

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens verified in the next step."""
        return self._num_draft_tokens

    @property
    def has_draft_tokens(self) -> bool:
        """Whether there are any drafts."""
        return self._num_draft_tokens > 0

    def set_num_draft_tokens(self, num_draft_tokens: int) -> None:
        """Set the number of drafts of the next step."""
        self._num_draft_tokens = check_count("num_draft_tokens", num_draft_tokens)

    def discard_draft_tokens(self, num_tokens_to_discard: int) -> None:
        """Drop drafts from the end."""
        check_integer("num_tokens_to_discard", num_tokens_to_discard)
        if not 0 <= num_tokens_to_discard <= self._num_draft_tokens:
            raise InvalidInputError(
                f"{num_tokens_to_discard} drafts to discard, request {self.request_id} has {self._num_draft_tokens}"
            )
        self._num_draft_tokens -= num_tokens_to_discard

    def pause(self, max_input_len: int) -> None:
        """Go back to the start of the context stage, keeping generated tokens as prompt (one beam only).

        Tokens behind the new prompt are dropped with their extra ids; tokens added later have extra id 0.
        """
        check_count("max_input_len", max_input_len)
        self._block_key_cache = None
        if len(self._tokens) == 1:
            new_prompt_len = min(max_input_len, len(self._tokens[0]))
            self.max_new_tokens -= new_prompt_len - self._prompt_len
            self._prompt_len = new_prompt_len
        for tokens in self._tokens:
            del tokens[self._prompt_len :]
        if self.input_token_extra_ids is not None:
            self.input_token_extra_ids = self.input_token_extra_ids[: self._prompt_len]
        has_encoder = self.encoder_tokens is not None
        self._state = LlmRequestState.ENCODER_INIT if has_encoder else LlmRequestState.CONTEXT_INIT
        self._context_current_position = 0
        self._prepopulated_prompt_len = 0
        self._context_chunk_size = self._prompt_len

    def update_block_counters(self, alloc_total: int, alloc_new: int, reused: int, missed: int) -> None:
        """Add one admission's counts. C++: the four update...PerRequest methods."""
        self.alloc_total_blocks_per_request += alloc_total
        self.alloc_new_blocks_per_request += alloc_new
        self.reused_blocks_per_request += reused
        self.missed_blocks_per_request += missed


def add_new_token_to_each(requests: Sequence[LlmRequest], tokens: Sequence[TokenId]) -> None:
    """``add_new_token`` for a decode batch of one beam each, in order; those before a failing one keep their token."""
    if len(requests) != len(tokens):
        raise InvalidInputError(f"{len(tokens)} tokens for {len(requests)} requests; give one for each")
    for request, token in zip(requests, tokens, strict=True):
        try:
            request._tokens[0].append(token)
        except (TypeError, OverflowError):
            request.add_new_token(token)  # which says what is wrong
