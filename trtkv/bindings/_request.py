"""LlmRequest as the bindings show it: callers subclass it and hang attributes on it; a core request is inside."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from trtkv.bindings import executor
from trtkv.bindings._border import bound_class
from trtkv.bindings._keys import UniqueToken, make_unique_tokens
from trtkv.bindings._types import LlmRequestType, SamplingConfig
from trtkv.checks import check_count
from trtkv.errors import InvalidInputError, LogicError
from trtkv.records import llm_request as core
from trtkv.records.llm_request import LlmRequestState, MultimodalInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STORED = (
    "end_id",
    "pad_id",
    "embedding_bias",
    "bad_words_list",
    "stop_words_list",
    "position_ids",
    "prompt_embedding_table",
    "prompt_vocab_size",
    "multimodal_embedding",
    "mrope_rotary_cos_sin",
    "mrope_position_deltas",
    "lora_weights",
    "lora_config",
    "lookahead_config",
    "return_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "draft_logits",
    "exclude_input_from_output",
    "logits_post_processor",
    "apply_logits_post_processor_batched",
    "return_encoder_output",
    "client_id",
    "encoder_input_features",
    "cross_attention_mask",
    "llm_request_type",
    "num_return_sequences",
    "eagle_config",
    "skip_cross_attn_blocks",
    "return_perf_metrics",
    "guided_decoding_params",
    "language_adapter_uid",
    "allotted_time_ms",
    "context_phase_params",
    "arrival_time",
    "agent_hierarchy",
)
"""Arguments that the cache has no use for; they can be read and assigned."""


class CoreRequest(core.LlmRequest):
    """A core request that leads back to the outer one; weakly, as the outer one owns it."""

    __slots__ = ("_outer",)
    _outer: ReferenceType[LlmRequest]

    def set_prompt_len(self, prompt_len: int) -> None:
        """Move the border between prompt and generated tokens, as warm-up requests do after their admission."""
        self._prompt_len = check_count("prompt_len", prompt_len)

    @property
    def outer(self) -> LlmRequest:
        """The object that the caller holds."""
        outer = self._outer()
        if outer is None:
            raise LogicError(f"request {self.request_id} is used after its owner let go of it")
        return outer


def copy_core(source: core.LlmRequest) -> CoreRequest:
    """A request of its own with the same tokens, state and position."""
    copied = CoreRequest.__new__(CoreRequest)
    for name in core.LlmRequest.__slots__:
        value = getattr(source, name)
        if isinstance(value, list):
            value = [array(item.typecode, item) for item in value]
        setattr(copied, name, value)
    copied._block_key_cache = None
    return copied


@bound_class
class GenericLlmRequest:
    """Base class of LlmRequest, as in the bindings."""

    global_steady_clock_offset: Any = None

    _core: CoreRequest

    # -- tokens ---------------------------------------------------------------------------------------

    def get_num_tokens(self, beam: int) -> int:
        """Prompt plus generated tokens of a beam."""
        return self._core.get_num_tokens(beam)

    @property
    def max_beam_num_tokens(self) -> int:
        """Tokens of the longest beam."""
        return max(self._core.get_num_tokens(beam) for beam in range(self._core.beam_width))

    @property
    def max_num_generated_tokens(self) -> int:
        """Tokens of the longest beam after the prompt."""
        return self.max_beam_num_tokens - self._core.prompt_len

    def get_token(self, beam: int, pos: int) -> int:
        """One token."""
        return self._core.get_tokens(beam)[pos]

    def get_tokens_range(self, beam: int, begin: int, end: int) -> list[int]:
        """Tokens from begin to end, cut to those there are."""
        tokens = self._core.get_tokens(beam)
        return tokens[max(0, begin) : max(0, min(end, len(tokens)))].tolist()

    def get_tokens(self, beam: int | None = None) -> Any:
        """Tokens of a beam, or a list of them for all beams; copies."""
        if beam is None:
            return [self._core.get_tokens(index).tolist() for index in range(self._core.beam_width)]
        return self._core.get_tokens(beam).tolist()

    def get_tokens_view(self, beam: int) -> NDArray[np.int32]:
        """Tokens of a beam as a read-only int32 array."""
        import numpy as np

        tokens = np.array(self._core.get_tokens(beam), dtype=np.int32)
        tokens.flags.writeable = False
        return tokens

    def get_last_tokens(self, beam: int | None = None) -> Any:
        """The last token of a beam, or a list of them for all beams."""
        if beam is None:
            return [self._core.get_tokens(index)[-1] for index in range(self._core.beam_width)]
        return self._core.get_tokens(beam)[-1]

    def _unique_tokens(self, beam: int) -> list[UniqueToken]:
        return make_unique_tokens(self._core.get_tokens(beam), self._core.input_token_extra_ids)

    def get_unique_tokens(self, beam: int | None = None) -> Any:
        """Tokens with extra ids of a beam, or a list of them for all beams."""
        if beam is None:
            return [self._unique_tokens(index) for index in range(self._core.beam_width)]
        return self._unique_tokens(beam)

    def get_encoder_unique_tokens(self) -> list[UniqueToken] | None:
        """Tokens of the encoder input."""
        tokens = self._core.encoder_tokens
        return None if tokens is None else make_unique_tokens(tokens)

    def get_beam_width_by_iter(self, for_next_iteration: bool = False) -> int:
        """The beam width, which does not change."""
        return self._core.beam_width

    def add_new_token(self, token: int, beam: int) -> None:
        """Append a token to a beam."""
        self._core.add_new_token(token, beam)

    def add_new_tokens(self, beam_tokens: Sequence[int]) -> None:
        """Append one token to each beam."""
        self._core.add_new_tokens([[token] for token in beam_tokens])

    def set_generated_tokens(self, generated_beam_tokens: Sequence[Sequence[int]]) -> None:
        """Replace everything after the prompt, beam by beam."""
        self._core.set_generated_tokens(generated_beam_tokens)

    # -- state and chunks --------------------------------------------------------------------------------

    @property
    def request_id(self) -> int:
        """Id of the request."""
        return self._core.request_id

    @request_id.setter
    def request_id(self, value: int) -> None:
        self._core.request_id = value

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return self._core.prompt_len

    @prompt_len.setter
    def prompt_len(self, value: int) -> None:
        self._core.set_prompt_len(value)

    @property
    def max_new_tokens(self) -> int:
        """Tokens to generate at most."""
        return self._core.max_new_tokens

    @max_new_tokens.setter
    def max_new_tokens(self, value: int) -> None:
        self._core.max_new_tokens = value

    @property
    def state(self) -> LlmRequestState:
        """Current stage."""
        return self._core.state

    @state.setter
    def state(self, value: LlmRequestState) -> None:
        if not isinstance(value, LlmRequestState):
            raise TypeError(f"state must be a LlmRequestState, not {value!r}")
        self._core.set_state(value)

    @property
    def state_value(self) -> int:
        """Number of the stage."""
        return int(self._core.state)

    @property
    def context_current_position(self) -> int:
        """Prompt tokens computed or taken from the cache so far."""
        return self._core.context_current_position

    @context_current_position.setter
    def context_current_position(self, value: int) -> None:
        self._core.set_context_current_position(value)

    @property
    def context_chunk_size(self) -> int:
        """Tokens of the next chunk; RuntimeError outside the context stages."""
        return self._core.context_chunk_size

    @context_chunk_size.setter
    def context_chunk_size(self, value: int) -> None:
        self._core.set_context_chunk_size(value)

    @property
    def context_remaining_length(self) -> int:
        """Prompt tokens still to be computed."""
        return self._core.context_remaining_length

    @property
    def is_first_context_chunk(self) -> bool:
        """Whether nothing after the cached part has been computed."""
        return self._core.is_first_context_chunk

    @property
    def is_last_context_chunk(self) -> bool:
        """Whether the next chunk ends the prompt."""
        return self._core.is_last_context_chunk

    def move_to_next_context_chunk(self) -> None:
        """Take the current chunk as computed."""
        self._core.move_to_next_context_chunk()

    @property
    def prepopulated_prompt_len(self) -> int:
        """Prompt tokens found in the cache at admission."""
        return self._core.prepopulated_prompt_len

    def set_prepopulated_prompt_len(self, prepopulated_prompt_len: int, kv_tokens_per_block: int) -> None:
        """Record a cache match."""
        self._core.set_prepopulated_prompt_len(prepopulated_prompt_len, kv_tokens_per_block)

    @property
    def estimated_reusable_tokens(self) -> int:
        """Cached tokens that the last budget call counted on."""
        return self._core.estimated_reusable_tokens

    @estimated_reusable_tokens.setter
    def estimated_reusable_tokens(self, value: int) -> None:
        self._core.set_estimated_reusable_tokens(value)

    @property
    def is_dummy_request(self) -> bool:
        """Whether the request only warms up."""
        return self._core.is_dummy_request

    @is_dummy_request.setter
    def is_dummy_request(self, value: bool) -> None:
        self._core.is_dummy_request = value

    @property
    def is_context_init_state(self) -> bool:
        """Whether the prompt is still to be computed."""
        return self._core.is_context_init_state

    @property
    def is_context_finished(self) -> bool:
        """Whether the prompt counts as computed."""
        return self._core.is_context_finished

    @property
    def is_generation_in_progress_state(self) -> bool:
        """Whether tokens are being generated."""
        return self._core.is_generation_in_progress_state

    @property
    def is_generation_to_complete_state(self) -> bool:
        """Whether the last step is under way."""
        return self._core.state is LlmRequestState.GENERATION_TO_COMPLETE

    @property
    def is_generation_complete_state(self) -> bool:
        """Whether the request is over."""
        return self._core.state is LlmRequestState.GENERATION_COMPLETE

    @property
    def is_encoder_init_state(self) -> bool:
        """Whether the encoder is still to run."""
        return self._core.state is LlmRequestState.ENCODER_INIT

    @property
    def is_disagg_generation_init_state(self) -> bool:
        """Whether the prompt's cache is still to come from another server."""
        return self._core.is_disagg_generation_init_state

    @property
    def is_disagg_generation_transmission_in_progress(self) -> bool:
        """Whether it is coming."""
        return self._core.state is LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS

    @property
    def is_disagg_generation_transmission_complete(self) -> bool:
        """Whether it has come."""
        return self._core.state is LlmRequestState.DISAGG_GENERATION_TRANS_COMPLETE

    @property
    def is_disagg_context_transmission_state(self) -> bool:
        """Whether the cache is on its way to another server."""
        return self._core.state is LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS

    @property
    def is_disagg_context_complete_state(self) -> bool:
        """Whether it has arrived there."""
        return self._core.state is LlmRequestState.DISAGG_CONTEXT_COMPLETE

    @property
    def is_context_only_request(self) -> bool:
        """Whether only the prompt is computed here."""
        return self._get("llm_request_type") is LlmRequestType.LLMREQUEST_TYPE_CONTEXT_ONLY

    @property
    def is_generation_only_request(self) -> bool:
        """Whether only tokens are generated here."""
        return self._get("llm_request_type") is LlmRequestType.LLMREQUEST_TYPE_GENERATION_ONLY

    def _get(self, name: str) -> Any:
        return vars(self).get(name)

    def will_complete_next_iteration(self) -> bool:
        """Whether one more token reaches the limit."""
        return self.max_num_generated_tokens + 1 >= self._core.max_new_tokens

    def pause(self, max_input_len: int) -> None:
        """Go back to the start of the context stage, keeping generated tokens as prompt."""
        self._core.pause(max_input_len)

    # -- drafts ------------------------------------------------------------------------------------------

    @property
    def draft_tokens(self) -> list[int] | None:
        """Drafts of the next step, None without any; assigning None changes nothing."""
        drafts: list[int] = self._get("_drafts") or []
        return list(drafts[: self._core.num_draft_tokens]) or None

    @draft_tokens.setter
    def draft_tokens(self, value: Sequence[int] | None) -> None:
        if value is not None:
            vars(self)["_drafts"] = list(value)
            self._core.set_num_draft_tokens(len(value))

    @property
    def num_draft_tokens(self) -> int:
        """Drafts of the next step."""
        return self._core.num_draft_tokens

    def has_draft_tokens(self) -> bool:
        """Whether there are any; a method, as in the bindings."""
        return self._core.has_draft_tokens

    def discard_draft_tokens(self, num_tokens_to_discard: int) -> None:
        """Drop drafts from the end."""
        self._core.discard_draft_tokens(num_tokens_to_discard)

    # -- identity of the content -----------------------------------------------------------------------------

    @property
    def lora_task_id(self) -> int | None:
        """The adapter."""
        return self._core.lora_task_id

    @property
    def cache_salt(self) -> str | None:
        """The salt."""
        return self._core.cache_salt

    @property
    def encoder_tokens(self) -> list[int] | None:
        """Tokens of the encoder input."""
        tokens = self._core.encoder_tokens
        return None if tokens is None else tokens.tolist()

    @property
    def encoder_output_len(self) -> int:
        """Tokens that the encoder gives; RuntimeError without encoder."""
        length = self.try_get_encoder_output_len()
        if length is None:
            raise InvalidInputError(f"request {self._core.request_id} has no encoder")
        return length

    @encoder_output_len.setter
    def encoder_output_len(self, value: int) -> None:
        self._core.encoder_output_len = value

    def try_get_encoder_output_len(self) -> int | None:
        """Tokens that the encoder gives; None without encoder."""
        has_encoder = self._core.encoder_tokens is not None or self._core.encoder_output_len
        return self._core.encoder_output_len if has_encoder else None

    def _multimodal(self, name: str) -> Any:
        value = None if self._core.multimodal_input is None else getattr(self._core.multimodal_input, name)
        return None if value is None else list(value)

    @property
    def multimodal_hashes(self) -> Any:
        """Content hashes of images and the like."""
        return self._multimodal("hashes")

    @property
    def multimodal_positions(self) -> Any:
        """First token of each item."""
        return self._multimodal("positions")

    @property
    def multimodal_lengths(self) -> Any:
        """Tokens of each item."""
        return self._multimodal("lengths")

    @property
    def multimodal_uuids(self) -> Any:
        """Names of items."""
        return self._multimodal("uuids")

    @property
    def multimodal_item_run_cu_offsets(self) -> Any:
        """Where the runs of each item begin."""
        return self._multimodal("item_run_cu_offsets")

    @property
    def multimodal_run_positions(self) -> Any:
        """First token of each run."""
        return self._multimodal("run_positions")

    @property
    def multimodal_run_lengths(self) -> Any:
        """Tokens of each run."""
        return self._multimodal("run_lengths")

    # -- counters and results -------------------------------------------------------------------------------------

    @property
    def alloc_total_blocks(self) -> int:
        """Blocks taken at admission."""
        return self._core.alloc_total_blocks_per_request

    @property
    def alloc_new_blocks(self) -> int:
        """Of these, blocks that had never held tokens."""
        return self._core.alloc_new_blocks_per_request

    @property
    def reused_blocks(self) -> int:
        """Blocks found in the cache."""
        return self._core.reused_blocks_per_request

    @property
    def missed_blocks(self) -> int:
        """Blocks not found in the cache."""
        return self._core.missed_blocks_per_request

    @property
    def kv_cache_hit_rate(self) -> float:
        """Found / (found + not found)."""
        asked = self.reused_blocks + self.missed_blocks
        return self.reused_blocks / asked if asked else 0.0

    def update_kv_cache_perf_metrics(
        self, alloc_total_blocks: int, alloc_new_blocks: int, reused_blocks: int, missed_blocks: int
    ) -> None:
        """Add one admission's counts."""
        self._core.update_block_counters(alloc_total_blocks, alloc_new_blocks, reused_blocks, missed_blocks)

    @property
    def _finish_reasons(self) -> dict[int, executor.FinishReason]:
        reasons: dict[int, executor.FinishReason] = vars(self).setdefault("_reasons", {})
        return reasons

    def set_finished_reason(self, finish_reason: executor.FinishReason, beam: int) -> None:
        """Note why a beam ended."""
        self._finish_reasons[beam] = finish_reason

    def finish_by_reason(self, finish_reason: executor.FinishReason) -> None:
        """End the request."""
        for beam in range(self._core.beam_width):
            self._finish_reasons.setdefault(beam, finish_reason)
        self._core.set_state(LlmRequestState.GENERATION_COMPLETE)

    def _all_finished_by(self, *reasons: executor.FinishReason) -> bool:
        noted = self._finish_reasons
        return len(noted) == self._core.beam_width and all(reason in reasons for reason in noted.values())

    @property
    def is_finished(self) -> bool:
        """Whether the request is over."""
        return self._core.state is LlmRequestState.GENERATION_COMPLETE

    @property
    def is_finished_due_to_length(self) -> bool:
        """Whether all beams reached the limit."""
        return self._all_finished_by(executor.FinishReason.LENGTH)

    @property
    def is_finished_due_to_cancellation(self) -> bool:
        """Whether all beams were cancelled."""
        return self._all_finished_by(executor.FinishReason.CANCELLED)

    @property
    def is_finished_without_error(self) -> bool:
        """Whether all beams ended as they should."""
        reason = executor.FinishReason
        return self._all_finished_by(reason.END_ID, reason.STOP_WORDS, reason.LENGTH)

    def priority(self) -> float:
        """Priority among waiting requests; a method, as in the bindings."""
        value: float = self._get("_priority")
        return value

    def set_priority(self, priority: float) -> None:
        """Set it."""
        vars(self)["_priority"] = priority

    def set_log_probs(self, log_probs: object, beam: int) -> None:
        """Keep log probabilities of a beam."""
        vars(self).setdefault("log_probs", {})[beam] = log_probs

    def get_log_probs(self, beam: int) -> Any:
        """Log probabilities of a beam."""
        return (self._get("log_probs") or {}).get(beam)

    def set_cum_log_prob(self, cum_log_prob: float, beam: int) -> None:
        """Keep the sum of log probabilities of a beam."""
        vars(self).setdefault("cum_log_probs", {})[beam] = cum_log_prob

    def set_exclude_input_from_output(self, exclude: bool) -> None:
        """Keep the flag."""
        vars(self)["exclude_input_from_output"] = exclude

    def set_return_encoder_output(self, return_encoder_output: bool) -> None:
        """Keep the flag."""
        vars(self)["return_encoder_output"] = return_encoder_output

    def get_return_encoder_output(self) -> bool:
        """The flag."""
        return bool(self._get("return_encoder_output"))

    def update_num_tokens_per_iteration(self, *args: object) -> None:
        """Speed of decoding is not measured here."""

    def set_first_scheduled_time(self, *args: object) -> None:
        """Times are not measured here."""

    def update_perf_metrics(self, *args: object) -> None:
        """Times are not measured here."""

    def remove_lora_tensors(self) -> None:
        """Drop adapter weights."""
        vars(self).update(lora_weights=None, lora_config=None)

    def __getattr__(self, name: str) -> Any:
        if name in _OUTSIDE_THE_CACHE:
            raise NotImplementedError(f"LlmRequest.{name} belongs to TensorRT-LLM's decoder; trtkv has the cache only")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_OUTSIDE_THE_CACHE = frozenset(
    {
        "alloc_context_logits",
        "create_response",
        "create_result",
        "create_serialized_result",
        "move_prompt_embedding_table_to_gpu",
        "move_lora_weights_to_gpu",
        "check_token_id_range",
        "validate",
    }
)


@bound_class
class LlmRequest(GenericLlmRequest):
    """A request. ``LlmRequest(other)`` copies one; see docs/bindings.md for what the cache uses of the arguments."""

    def __init__(
        self,
        request_id: Any = None,
        max_new_tokens: Any = None,
        input_tokens: Sequence[int] | None = None,
        sampling_config: Any = None,
        is_streaming: Any = None,
        end_id: int | None = None,
        pad_id: int | None = None,
        embedding_bias: Any = None,
        bad_words_list: Any = None,
        stop_words_list: Any = None,
        position_ids: Any = None,
        prompt_embedding_table: Any = None,
        prompt_vocab_size: int | None = None,
        multimodal_hashes: Any = None,
        multimodal_positions: Any = None,
        multimodal_lengths: Any = None,
        multimodal_uuids: Any = None,
        multimodal_embedding: Any = None,
        mrope_rotary_cos_sin: Any = None,
        mrope_position_deltas: Any = None,
        lora_task_id: int | None = None,
        lora_weights: Any = None,
        lora_config: Any = None,
        lookahead_config: Any = None,
        kv_cache_retention_config: executor.KvCacheRetentionConfig | None = None,
        return_log_probs: bool = False,
        return_context_logits: bool = False,
        return_generation_logits: bool = False,
        draft_tokens: Sequence[int] | None = None,
        draft_logits: Any = None,
        exclude_input_from_output: bool = False,
        logits_post_processor: Any = None,
        apply_logits_post_processor_batched: bool = False,
        encoder_input_tokens: Sequence[int] | None = None,
        return_encoder_output: bool = False,
        client_id: int | None = None,
        priority: float = 0.5,
        encoder_input_features: Any = None,
        encoder_output_len: int | None = None,
        cross_attention_mask: Any = None,
        llm_request_type: LlmRequestType = LlmRequestType.LLMREQUEST_TYPE_CONTEXT_AND_GENERATION,
        input_token_extra_ids: Sequence[int] | None = None,
        num_return_sequences: int = 1,
        eagle_config: Any = None,
        skip_cross_attn_blocks: Any = None,
        return_perf_metrics: bool = False,
        guided_decoding_params: Any = None,
        language_adapter_uid: int | None = None,
        allotted_time_ms: Any = None,
        context_phase_params: Any = None,
        arrival_time: Any = None,
        agent_hierarchy: Any = None,
        multimodal_item_run_cu_offsets: Any = None,
        multimodal_run_positions: Any = None,
        multimodal_run_lengths: Any = None,
        cache_salt: str | None = None,
        *,
        cache_salt_id: int | None = None,
        llm_request: LlmRequest | None = None,
    ) -> None:
        other = llm_request if llm_request is not None else request_id
        if isinstance(other, LlmRequest):
            self._copy(other)
            return
        required = {
            "request_id": request_id,
            "max_new_tokens": max_new_tokens,
            "input_tokens": input_tokens,
            "sampling_config": sampling_config,
            "is_streaming": is_streaming,
        }
        missing = [name for name, value in required.items() if value is None]
        if missing:
            raise TypeError(f"LlmRequest needs {', '.join(missing)}")
        given = locals()
        vars(self).update({name: given[name] for name in _STORED})
        self._drafts: list[int] = []
        self._priority = priority
        self.streaming = is_streaming
        self.sampling_config = (
            SamplingConfig(sampling_config) if isinstance(sampling_config, executor.SamplingConfig) else sampling_config
        )
        self._retention = kv_cache_retention_config
        multimodal = None
        if multimodal_hashes is not None:
            multimodal = MultimodalInput(
                multimodal_hashes,
                multimodal_positions,
                multimodal_lengths,
                multimodal_uuids,
                multimodal_item_run_cu_offsets,
                multimodal_run_positions,
                multimodal_run_lengths,
            )
        has_encoder = encoder_input_tokens is not None or encoder_input_features is not None
        salt = f"id {cache_salt_id}" if cache_salt is None and cache_salt_id is not None else cache_salt
        self._attach(
            CoreRequest(
                request_id,
                input_tokens or (),
                max_new_tokens,
                beam_width=self.sampling_config.beam_width,
                input_token_extra_ids=input_token_extra_ids,
                lora_task_id=lora_task_id,
                cache_salt=salt,
                encoder_tokens=encoder_input_tokens,
                encoder_output_len=encoder_output_len,
                kv_cache_retention_config=(
                    None if kv_cache_retention_config is None else kv_cache_retention_config.to_core()
                ),
                multimodal_input=multimodal,
                state=LlmRequestState.ENCODER_INIT if has_encoder else LlmRequestState.CONTEXT_INIT,
            )
        )
        self.draft_tokens = draft_tokens
        self._set_rest()

    def _attach(self, core_request: CoreRequest) -> None:
        core_request._outer = ref(self)
        self._core = core_request

    def _set_rest(self) -> None:
        """Attributes that only exist to be read and assigned."""
        self.orig_prompt_len = self._core.prompt_len
        self.max_sent_token_len = self._core.prompt_len
        self.seq_slot: int | None = None
        self.decoding_iter = 0
        self.expect_snapshot_points: list[int] = []
        self.use_draft_model = False
        self.parent_request_id: int | None = None
        self.is_child = False
        self.log_probs: Any = {}
        self.cum_log_probs: Any = {}
        self.stage: Any = None
        self.kv_cache_transfer_time_ms = 0.0
        self.kv_cache_size = 0
        self.avg_decoded_tokens_per_iter = 0.0

    def _copy(self, other: LlmRequest) -> None:
        bound_names = {*_STORED, "streaming", "sampling_config", *_COPIED}
        vars(self).update({name: value for name, value in vars(other).items() if name in bound_names})
        self._drafts = list(other._drafts)
        self._reasons = dict(other._finish_reasons)
        self._attach(copy_core(other._core))

    @property
    def core(self) -> core.LlmRequest:
        """The request that managers and schedulers of trtkv work on."""
        return self._core

    @property
    def kv_cache_retention_config(self) -> executor.KvCacheRetentionConfig | None:
        """The object given."""
        return self._retention

    def create_child_request(self, child_id: int) -> LlmRequest:
        """A copy under another id, for one more sequence of the same prompt; its seed is one higher per child."""
        child = LlmRequest(self)
        child.request_id = child_id
        child.parent_request_id = self.request_id
        child.is_child = True
        self._num_children = self._get("_num_children") or 0
        self._num_children += 1
        child.sampling_config = SamplingConfig(self.sampling_config)
        seed = getattr(self.sampling_config, "random_seed", None)
        child.sampling_config.random_seed = [(seed[0] if seed else 0) + self._num_children]
        return child


_COPIED = (
    "_retention",
    "_priority",
    "orig_prompt_len",
    "max_sent_token_len",
    "seq_slot",
    "decoding_iter",
    "expect_snapshot_points",
    "use_draft_model",
    "parent_request_id",
    "is_child",
    "log_probs",
    "cum_log_probs",
    "stage",
    "kv_cache_transfer_time_ms",
    "kv_cache_size",
    "avg_decoded_tokens_per_iter",
)


def unwrap(request: object) -> CoreRequest:
    """The core of a request that came in."""
    if not isinstance(request, LlmRequest):
        raise TypeError(f"expected a LlmRequest, not {request!r}")
    return request._core


def wrap(request: core.LlmRequest) -> LlmRequest:
    """The very object that the caller handed in."""
    if not isinstance(request, CoreRequest):
        raise LogicError(f"request {request.request_id} did not come in through the bindings")
    return request.outer
