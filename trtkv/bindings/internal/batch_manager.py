"""``tensorrt_llm.bindings.internal.batch_manager``: managers, requests and what they carry."""

from __future__ import annotations

from trtkv.bindings._keys import BlockKey, BlockKeyHasher, UniqueToken
from trtkv.bindings._manager import (
    BaseKVCacheManager,
    CacheBlockIds,
    KvCacheConnectorManager,
    KVCacheEventManager,
    KVCacheManager,
    LinearAttentionMetadata,
    PoolConfiguration,
    PrefixReuseSummary,
)
from trtkv.bindings._request import GenericLlmRequest, LlmRequest
from trtkv.bindings._schedulers import (
    BasePeftCacheManager,
    ContextChunkingConfig,
    LoraCacheFullException,
    NoOpPeftCacheManager,
    PeftCacheManager,
    PeftTaskNotCachedException,
    ReqIdsSet,
    SequenceSlotManager,
    add_new_tokens_to_requests,
)
from trtkv.bindings._types import CacheType, LinearCacheType, LlmRequestType
from trtkv.bindings.executor import ContextChunkingPolicy
from trtkv.records.stats import KvCacheIterationStats, KvCacheStats

__all__ = [
    "BaseKVCacheManager",
    "BasePeftCacheManager",
    "BlockKey",
    "BlockKeyHasher",
    "CacheBlockIds",
    "CacheType",
    "ContextChunkingConfig",
    "ContextChunkingPolicy",
    "GenericLlmRequest",
    "KVCacheEventManager",
    "KVCacheManager",
    "KvCacheConnectorManager",
    "KvCacheIterationStats",
    "KvCacheStats",
    "LinearAttentionMetadata",
    "LinearCacheType",
    "LlmRequest",
    "LlmRequestType",
    "LoraCacheFullException",
    "NoOpPeftCacheManager",
    "PeftCacheManager",
    "PeftTaskNotCachedException",
    "PoolConfiguration",
    "PrefixReuseSummary",
    "ReqIdsSet",
    "SequenceSlotManager",
    "UniqueToken",
    "add_new_tokens_to_requests",
]

LLMREQUEST_TYPE_CONTEXT_AND_GENERATION = LlmRequestType.LLMREQUEST_TYPE_CONTEXT_AND_GENERATION
LLMREQUEST_TYPE_CONTEXT_ONLY = LlmRequestType.LLMREQUEST_TYPE_CONTEXT_ONLY
LLMREQUEST_TYPE_GENERATION_ONLY = LlmRequestType.LLMREQUEST_TYPE_GENERATION_ONLY
