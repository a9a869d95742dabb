"""trtkv: TensorRT-LLM's KV-cache manager in Python that can be read, run and changed."""

from trtkv._version import __version__ as __version__
from trtkv.common import CacheType as CacheType
from trtkv.common import DataType as DataType
from trtkv.common import KeyForm as KeyForm
from trtkv.common import KvCacheTransferMode as KvCacheTransferMode
from trtkv.errors import OutOfBlocksError as OutOfBlocksError
from trtkv.errors import TrtkvError as TrtkvError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager as KVCacheEventManager
from trtkv.keys.block_key import BlockKey as BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager as KVCacheManager
from trtkv.records.linear_attention import LinearAttentionMetadata as LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest as LlmRequest
from trtkv.records.llm_request import LlmRequestState as LlmRequestState
from trtkv.records.retention_config import KvCacheRetentionConfig as KvCacheRetentionConfig
from trtkv.records.retention_config import TokenRangeRetentionConfig as TokenRangeRetentionConfig
