"""Resource managers of a PyTorch executor: prepare a step, settle it, free what is done."""

from __future__ import annotations

from trtkv.resource_manager.base_resource_manager import BaseResourceManager, KvBlockBudget
from trtkv.resource_manager.kv_cache_resource_manager import KVCacheResourceManager
from trtkv.resource_manager.resource_manager import ResourceManager, ResourceManagerType

__all__ = [
    "BaseResourceManager",
    "KVCacheResourceManager",
    "KvBlockBudget",
    "ResourceManager",
    "ResourceManagerType",
]
