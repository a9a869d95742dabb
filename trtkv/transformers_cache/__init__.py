"""A Cache of transformers over the pools of a KVCacheManager."""

from __future__ import annotations
