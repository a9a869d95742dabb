"""trtkv: TensorRT-LLM's KV-cache manager in Python that can be read, run and changed.

All public names are importable from here; each is loaded when it is first used, so ``import trtkv`` loads no module.
A new public name stands twice below: in the table that runs, and among the imports that type checkers read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from trtkv._lazy import lazy_names
from trtkv._moved import MovedModules
from trtkv._version import __version__ as __version__

PUBLIC_NAMES: Final = {
    "blocks.block_listener": ("BlockListener", "RemovalReason"),
    "common": ("CacheType", "DataType", "KeyForm", "KvCacheTransferMode", "RECURRENT_STATES"),
    "errors": (
        "CapacityError",
        "ConfigurationError",
        "InvalidInputError",
        "LogicError",
        "MissingExtraError",
        "OutOfBlocksError",
        "RetentionRangeError",
        "TraceFormatError",
        "TrtkvError",
        "UnknownIdError",
    ),
    "events.attention_dp_gather": ("AttentionDpEventGatherer",),
    "events.kv_cache_event_consumer": ("KVCacheEventConsumer", "RankedEventConsumer"),
    "events.kv_cache_event_manager": ("KVCacheEventManager",),
    "events.router_index": ("RouterIndex", "WorkerRank"),
    "eviction.protocol": ("EvictionPolicy",),
    "eviction.eviction_choice": ("EvictionChoice",),
    "eviction.registry": ("EVICTIONS", "Eviction", "order_eviction"),
    "executor.executor": ("PyTorchExecutor",),
    "executor.executor_config": ("ExecutorConfig", "create_kv_cache_manager"),
    "executor.model_spec": ("read_model_spec",),
    "exporters.page_tables": ("export_block_table", "export_flashinfer", "export_flex", "export_slot_mapping"),
    "exporters.prometheus_metrics": ("KvCacheMetrics",),
    "exporters.adapter_names": ("AdapterNames",),
    "exporters.trtllm_json": ("event_from_dict", "event_to_dict", "events_to_dicts"),
    "exporters.vllm_events": ("VllmEventEncoder", "VllmEventTranslator", "decode_batch"),
    "exporters.vllm_listener": ("VllmListener",),
    "exporters.zmq_event_publisher": ("ZmqEventPublisher",),
    "exporters.zmq_event_subscriber": ("ZmqEventSubscriber",),
    "inspection.invariants": ("check_invariants", "find_violations"),
    "inspection.picture": ("draw",),
    "keys.block_key": ("BlockKey",),
    "keys.key_builder": ("build_block_keys",),
    "keys.key_hash": ("hash_block_key",),
    "manager.kv_cache_manager": ("KVCacheManager",),
    "nano_engine.nano_engine": ("NanoEngine",),
    "pools.memory": ("CacheMemory", "calculate_blocks_per_window", "calculate_free_mem_bytes", "get_device_memory"),
    "records.cache_settings": (
        "CacheSettings",
        "EvictionSettings",
        "IndexerKCacheSettings",
        "LayerSettings",
        "ReuseSettings",
        "SequenceLimits",
        "WindowsSettings",
    ),
    "records.config": ("KvCacheConfig", "ModelConfig", "SchedulerConfig"),
    "records.linear_attention": ("LinearAttentionMetadata",),
    "records.llm_request": ("LlmRequest", "LlmRequestState", "MultimodalInput", "add_new_token_to_each"),
    "records.retention_config": ("KvCacheRetentionConfig", "TokenRangeRetentionConfig"),
    "replay.bounds.bounds": ("compute_bounds",),
    "replay.causes.causes": ("Cause",),
    "replay.closed_loop.closed_loop": ("ClosedLoop",),
    "replay.closed_loop.result": ("ReplayResult",),
    "replay.closed_loop.run": ("replay_trace",),
    "replay.config": ("ReplayConfig",),
    "replay.retention_rules": ("RetentionRule", "RetentionRules", "read_retention_rules"),
    "replay.scheduler_loop.loop_config": ("LoopConfig",),
    "replay.scheduler_loop.loop_result": ("LoopResult",),
    "replay.scheduler_loop.run": ("replay_with_scheduler",),
    "replay.sweep.grid": ("expand_grid",),
    "replay.sweep.process_pool": ("run_in_processes",),
    "replay.sweep.ray_pool": ("run_on_ray",),
    "replay.sweep.results_file": ("ResultsFile",),
    "replay.sweep.sweep": ("run_sweep",),
    "resource_manager": ("BaseResourceManager", "KVCacheResourceManager", "ResourceManager", "ResourceManagerType"),
    "scheduler.capacity_scheduler": ("CapacityScheduler",),
    "scheduler.micro_batch_scheduler": ("MicroBatchScheduler",),
    "scheduler.scheduled_requests": ("ScheduledRequests",),
    "scheduler.scheduler_config": ("CapacitySchedulerPolicy", "ChunkingPolicy", "ContextChunkingConfig"),
    "sizing.cache_plan": ("SizingOptions", "make_cache_plan"),
    "sizing.model_shape": ("read_model_shape",),
    "traces.generate.workload": ("generate_workload",),
    "traces.info.trace_info": ("describe_trace",),
    "traces.trace": ("RequestTrace", "TraceRequest"),
    "traces.trace_reader": ("read_trace",),
    "transformers_cache.paged_cache": ("PagedCache",),
    "transfers.copy_engine": ("BlockCopy", "CopyEngine", "NullCopyEngine", "RecordingCopyEngine"),
    "transfers.cupy_copy_engine": ("CupyCopyEngine",),
    "transfers.file_copy_engine": ("FileCopyEngine",),
    "transfers.torch_copy_engine": ("TorchCopyEngine",),
    "verify": ("TraceRecorder", "verify_programs"),
}
"""Module below ``trtkv`` -> the public names that it defines."""

if TYPE_CHECKING:
    from trtkv.blocks.block_listener import BlockListener as BlockListener
    from trtkv.blocks.block_listener import RemovalReason as RemovalReason
    from trtkv.common import RECURRENT_STATES as RECURRENT_STATES
    from trtkv.common import CacheType as CacheType
    from trtkv.common import DataType as DataType
    from trtkv.common import KeyForm as KeyForm
    from trtkv.common import KvCacheTransferMode as KvCacheTransferMode
    from trtkv.errors import CapacityError as CapacityError
    from trtkv.errors import ConfigurationError as ConfigurationError
    from trtkv.errors import InvalidInputError as InvalidInputError
    from trtkv.errors import LogicError as LogicError
    from trtkv.errors import MissingExtraError as MissingExtraError
    from trtkv.errors import OutOfBlocksError as OutOfBlocksError
    from trtkv.errors import RetentionRangeError as RetentionRangeError
    from trtkv.errors import TraceFormatError as TraceFormatError
    from trtkv.errors import TrtkvError as TrtkvError
    from trtkv.errors import UnknownIdError as UnknownIdError
    from trtkv.events.attention_dp_gather import AttentionDpEventGatherer as AttentionDpEventGatherer
    from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer as KVCacheEventConsumer
    from trtkv.events.kv_cache_event_consumer import RankedEventConsumer as RankedEventConsumer
    from trtkv.events.kv_cache_event_manager import KVCacheEventManager as KVCacheEventManager
    from trtkv.events.router_index import RouterIndex as RouterIndex
    from trtkv.events.router_index import WorkerRank as WorkerRank
    from trtkv.eviction.eviction_choice import EvictionChoice as EvictionChoice
    from trtkv.eviction.protocol import EvictionPolicy as EvictionPolicy
    from trtkv.eviction.registry import EVICTIONS as EVICTIONS
    from trtkv.eviction.registry import Eviction as Eviction
    from trtkv.eviction.registry import order_eviction as order_eviction
    from trtkv.executor.executor import PyTorchExecutor as PyTorchExecutor
    from trtkv.executor.executor_config import ExecutorConfig as ExecutorConfig
    from trtkv.executor.executor_config import create_kv_cache_manager as create_kv_cache_manager
    from trtkv.executor.model_spec import read_model_spec as read_model_spec
    from trtkv.exporters.adapter_names import AdapterNames as AdapterNames
    from trtkv.exporters.page_tables import export_block_table as export_block_table
    from trtkv.exporters.page_tables import export_flashinfer as export_flashinfer
    from trtkv.exporters.page_tables import export_flex as export_flex
    from trtkv.exporters.page_tables import export_slot_mapping as export_slot_mapping
    from trtkv.exporters.prometheus_metrics import KvCacheMetrics as KvCacheMetrics
    from trtkv.exporters.trtllm_json import event_from_dict as event_from_dict
    from trtkv.exporters.trtllm_json import event_to_dict as event_to_dict
    from trtkv.exporters.trtllm_json import events_to_dicts as events_to_dicts
    from trtkv.exporters.vllm_events import VllmEventEncoder as VllmEventEncoder
    from trtkv.exporters.vllm_events import VllmEventTranslator as VllmEventTranslator
    from trtkv.exporters.vllm_events import decode_batch as decode_batch
    from trtkv.exporters.vllm_listener import VllmListener as VllmListener
    from trtkv.exporters.zmq_event_publisher import ZmqEventPublisher as ZmqEventPublisher
    from trtkv.exporters.zmq_event_subscriber import ZmqEventSubscriber as ZmqEventSubscriber
    from trtkv.inspection.invariants import check_invariants as check_invariants
    from trtkv.inspection.invariants import find_violations as find_violations
    from trtkv.inspection.picture import draw as draw
    from trtkv.keys.block_key import BlockKey as BlockKey
    from trtkv.keys.key_builder import build_block_keys as build_block_keys
    from trtkv.keys.key_hash import hash_block_key as hash_block_key
    from trtkv.manager.kv_cache_manager import KVCacheManager as KVCacheManager
    from trtkv.nano_engine.nano_engine import NanoEngine as NanoEngine
    from trtkv.pools.memory import CacheMemory as CacheMemory
    from trtkv.pools.memory import calculate_blocks_per_window as calculate_blocks_per_window
    from trtkv.pools.memory import calculate_free_mem_bytes as calculate_free_mem_bytes
    from trtkv.pools.memory import get_device_memory as get_device_memory
    from trtkv.records.cache_settings import CacheSettings as CacheSettings
    from trtkv.records.cache_settings import EvictionSettings as EvictionSettings
    from trtkv.records.cache_settings import IndexerKCacheSettings as IndexerKCacheSettings
    from trtkv.records.cache_settings import LayerSettings as LayerSettings
    from trtkv.records.cache_settings import ReuseSettings as ReuseSettings
    from trtkv.records.cache_settings import SequenceLimits as SequenceLimits
    from trtkv.records.cache_settings import WindowsSettings as WindowsSettings
    from trtkv.records.config import KvCacheConfig as KvCacheConfig
    from trtkv.records.config import ModelConfig as ModelConfig
    from trtkv.records.config import SchedulerConfig as SchedulerConfig
    from trtkv.records.linear_attention import LinearAttentionMetadata as LinearAttentionMetadata
    from trtkv.records.llm_request import LlmRequest as LlmRequest
    from trtkv.records.llm_request import LlmRequestState as LlmRequestState
    from trtkv.records.llm_request import MultimodalInput as MultimodalInput
    from trtkv.records.llm_request import add_new_token_to_each as add_new_token_to_each
    from trtkv.records.retention_config import KvCacheRetentionConfig as KvCacheRetentionConfig
    from trtkv.records.retention_config import TokenRangeRetentionConfig as TokenRangeRetentionConfig
    from trtkv.replay.bounds.bounds import compute_bounds as compute_bounds
    from trtkv.replay.causes.causes import Cause as Cause
    from trtkv.replay.closed_loop.closed_loop import ClosedLoop as ClosedLoop
    from trtkv.replay.closed_loop.result import ReplayResult as ReplayResult
    from trtkv.replay.closed_loop.run import replay_trace as replay_trace
    from trtkv.replay.config import ReplayConfig as ReplayConfig
    from trtkv.replay.retention_rules import RetentionRule as RetentionRule
    from trtkv.replay.retention_rules import RetentionRules as RetentionRules
    from trtkv.replay.retention_rules import read_retention_rules as read_retention_rules
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig as LoopConfig
    from trtkv.replay.scheduler_loop.loop_result import LoopResult as LoopResult
    from trtkv.replay.scheduler_loop.run import replay_with_scheduler as replay_with_scheduler
    from trtkv.replay.sweep.grid import expand_grid as expand_grid
    from trtkv.replay.sweep.process_pool import run_in_processes as run_in_processes
    from trtkv.replay.sweep.ray_pool import run_on_ray as run_on_ray
    from trtkv.replay.sweep.results_file import ResultsFile as ResultsFile
    from trtkv.replay.sweep.sweep import run_sweep as run_sweep
    from trtkv.resource_manager import BaseResourceManager as BaseResourceManager
    from trtkv.resource_manager import KVCacheResourceManager as KVCacheResourceManager
    from trtkv.resource_manager import ResourceManager as ResourceManager
    from trtkv.resource_manager import ResourceManagerType as ResourceManagerType
    from trtkv.scheduler.capacity_scheduler import CapacityScheduler as CapacityScheduler
    from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler as MicroBatchScheduler
    from trtkv.scheduler.scheduled_requests import ScheduledRequests as ScheduledRequests
    from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy as CapacitySchedulerPolicy
    from trtkv.scheduler.scheduler_config import ChunkingPolicy as ChunkingPolicy
    from trtkv.scheduler.scheduler_config import ContextChunkingConfig as ContextChunkingConfig
    from trtkv.sizing.cache_plan import SizingOptions as SizingOptions
    from trtkv.sizing.cache_plan import make_cache_plan as make_cache_plan
    from trtkv.sizing.model_shape import read_model_shape as read_model_shape
    from trtkv.traces.generate.workload import generate_workload as generate_workload
    from trtkv.traces.info.trace_info import describe_trace as describe_trace
    from trtkv.traces.trace import RequestTrace as RequestTrace
    from trtkv.traces.trace import TraceRequest as TraceRequest
    from trtkv.traces.trace_reader import read_trace as read_trace
    from trtkv.transfers.copy_engine import BlockCopy as BlockCopy
    from trtkv.transfers.copy_engine import CopyEngine as CopyEngine
    from trtkv.transfers.copy_engine import NullCopyEngine as NullCopyEngine
    from trtkv.transfers.copy_engine import RecordingCopyEngine as RecordingCopyEngine
    from trtkv.transfers.cupy_copy_engine import CupyCopyEngine as CupyCopyEngine
    from trtkv.transfers.file_copy_engine import FileCopyEngine as FileCopyEngine
    from trtkv.transfers.torch_copy_engine import TorchCopyEngine as TorchCopyEngine
    from trtkv.transformers_cache.paged_cache import PagedCache as PagedCache
    from trtkv.verify import TraceRecorder as TraceRecorder
    from trtkv.verify import verify_programs as verify_programs
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, PUBLIC_NAMES)

sys.meta_path.append(MovedModules())
