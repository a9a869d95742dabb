"""A small PyTorch executor: Hugging Face causal models over the pools of a KVCacheManager."""

from __future__ import annotations
