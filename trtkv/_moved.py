"""Old names of modules that have moved: they keep working for one version, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

PACKAGE: Final = "trtkv"

MOVED: Final = {
    "attention_dp_gather": "events.attention_dp_gather",
    "block_budget": "manager.block_budget",
    "block_key": "keys.block_key",
    "block_listener": "blocks.block_listener",
    "block_manager": "manager.block_manager",
    "capacity_estimation": "pools.capacity_estimation",
    "compiled_hash": "keys.compiled_hash",
    "config": "records.config",
    "copy_engine": "transfers.copy_engine",
    "cupy_copy_engine": "transfers.cupy_copy_engine",
    "eviction_policy": "eviction.eviction_policy",
    "file_copy_engine": "transfers.file_copy_engine",
    "generation_request": "blocks.generation_request",
    "hash_map_order": "blocks.hash_map_order",
    "invariants": "inspection.invariants",
    "kv_cache_block": "blocks.kv_cache_block",
    "kv_cache_block_pool": "pools.kv_cache_block_pool",
    "kv_cache_event_consumer": "events.kv_cache_event_consumer",
    "kv_cache_event_manager": "events.kv_cache_event_manager",
    "kv_cache_events": "events.kv_cache_events",
    "kv_cache_index": "records.kv_cache_index",
    "kv_cache_manager": "manager.kv_cache_manager",
    "kv_cache_transfer_manager": "transfers.kv_cache_transfer_manager",
    "linear_attention": "records.linear_attention",
    "llm_request": "records.llm_request",
    "memory": "pools.memory",
    "offset_table_writer": "manager.offset_table_writer",
    "old_generation": "blocks.old_generation",
    "page_tables": "exporters.page_tables",
    "partial_match_index": "blocks.partial_match_index",
    "picture": "inspection.picture",
    "pool_tensors": "pools.pool_tensors",
    "radix_block_tree": "blocks.radix_block_tree",
    "replay.arrival_queue": "replay.scheduler_loop.arrival_queue",
    "replay.capacity_curve": "replay.bounds.capacity_curve",
    "replay.cause_counts": "replay.causes.cause_counts",
    "replay.cause_observer": "replay.causes.cause_observer",
    "replay.clairvoyant": "replay.bounds.clairvoyant",
    "replay.distribution": "replay.scheduler_loop.distribution",
    "replay.driver": "replay.closed_loop.closed_loop",
    "replay.explain_report": "replay.causes.cause_tables",
    "replay.explanation": "replay.causes.explanation",
    "replay.fenwick": "traces.prefixes.fenwick",
    "replay.formats": "traces.trace_reader",
    "replay.html_report": "replay.report.page",
    "replay.html_tables": "tables.html",
    "replay.json_text": "tables.json_text",
    "replay.key_history": "replay.causes.key_history",
    "replay.loop_backend": "replay.scheduler_loop.loop_backend",
    "replay.loop_config": "replay.scheduler_loop.loop_config",
    "replay.loop_counts": "replay.scheduler_loop.loop_counts",
    "replay.loop_ledger": "replay.scheduler_loop.loop_ledger",
    "replay.loop_report": "replay.scheduler_loop.loop_result",
    "replay.loop_result": "replay.scheduler_loop.run",
    "replay.miss_causes": "replay.causes.miss_causes",
    "replay.nano_driver": "replay.nano.nano_driver",
    "replay.nano_report": "replay.nano.nano_result",
    "replay.observed_manager": "replay.causes.observed_manager",
    "replay.path_ids": "traces.prefixes.path_ids",
    "replay.plots": "replay.report.plots",
    "replay.prefix_tree": "traces.prefixes.prefix_tree",
    "replay.progress_watch": "replay.scheduler_loop.progress_watch",
    "replay.readers": "",
    "replay.readers.agentic": "traces.formats.agentic",
    "replay.readers.arrivals": "traces.arrivals",
    "replay.readers.bailian": "traces.formats.bailian",
    "replay.readers.block_names": "traces.block_names",
    "replay.readers.chat_text": "traces.formats.openai",
    "replay.readers.dynamo": "traces.formats.dynamo",
    "replay.readers.fields": "traces.fields",
    "replay.readers.kvcache_simulator": "traces.formats.kvcache_simulator",
    "replay.readers.lengths": "traces.length_columns",
    "replay.readers.options": "traces.options",
    "replay.readers.registry": "traces.read_requests",
    "replay.readers.row_sources": "traces.row_sources",
    "replay.readers.text_tokenizer": "traces.text_tokenizer",
    "replay.refusal": "replay.scheduler_loop.refusal",
    "replay.replay_config": "replay.config",
    "replay.replay_result": "replay.closed_loop.run",
    "replay.reuse_distance": "traces.prefixes.reuse_distance",
    "replay.rows": "traces.rows",
    "replay.sampler": "traces.generate.sampler",
    "replay.simple_caches": "replay.bounds.simple_caches",
    "replay.step_time": "replay.scheduler_loop.step_time",
    "replay.symbols": "traces.prefixes.symbols",
    "replay.token_history": "replay.causes.token_history",
    "replay.trace": "traces.trace",
    "replay.trace_info": "traces.info.trace_info",
    "replay.trace_info_report": "traces.info.trace_info_tables",
    "replay.window_history": "replay.causes.window_history",
    "replay.wording": "tables.wording",
    "replay.workload": "traces.generate.workload",
    "retention_config": "records.retention_config",
    "sequence_admission": "manager.sequence_admission",
    "sequence_growth": "manager.sequence_growth",
    "stats": "records.stats",
    "templated_trie": "blocks.templated_trie",
    "torch_copy_engine": "transfers.torch_copy_engine",
    "window_size_metadata": "records.window_size_metadata",
}
"""Old module below ``trtkv`` -> where its content is now; an empty text stands for a package that is gone."""

PARTS: Final[Mapping[str, Sequence[str]]] = {
    "block_key": ("keys.key_builder", "keys.key_form", "keys.key_hash", "keys.multimodal_keys", "keys.packed_key"),
}
"""Old module that was cut -> modules that have the rest of its content."""


class MovedModules:
    """Finder and loader of modules under their old names; last in ``sys.meta_path``, so other imports cost the same.

    It derives from none of the base classes of ``importlib.abc``, which takes longer to import than this package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old name, which loads as the module that has its content."""
        package, _, old = fullname.partition(".")
        if package != PACKAGE or old not in MOVED:
            return None
        return ModuleSpec(fullname, cast("Loader", self), is_package=not MOVED[old])

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: the import machinery makes an empty module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the new module in the place of the empty one that the import machinery made."""
        old = module.__name__.partition(".")[2]
        new, parts = MOVED[old], PARTS.get(old, ())
        if new:
            warn_of_move(module.__name__, f"{PACKAGE}.{new}")
        if parts:
            for part in (*parts, new):
                vars(module).update(_names_of(importlib.import_module(f"{PACKAGE}.{part}")))
        elif new:
            sys.modules[module.__name__] = importlib.import_module(f"{PACKAGE}.{new}")


def _names_of(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def names_of_old_module(package: str, module: str) -> Callable[[str], object]:
    """``__getattr__`` of a package whose name was that of a module before; ``module`` has that content now."""

    def get(name: str) -> object:
        if name.startswith("__") or not hasattr(importlib.import_module(module), name):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warn_of_move(package, module)
        return getattr(importlib.import_module(module), name)

    return get


def warn_of_move(old: str, new: str) -> None:
    """The warning points at the import statement, since frames of the import machinery are left out."""
    text = f"{old} is now {new}; the old name goes with the next version. Public names come from {PACKAGE} itself."
    warnings.warn(text, DeprecationWarning, stacklevel=3)
