"""GuardedListener: a listener whose errors do not reach the call in which it is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from trtkv.blocks.block_listener import BlockListener, RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RequestId, WindowSize
from trtkv.errors import LogicError

_LOGGER: Final = logging.getLogger(__name__)


class GuardedListener:
    """Passes everything on. An error is logged, and the manager goes on as if there had been none.

    A listener is told in the middle of a call, where stopping would lose blocks. LogicError and AssertionError come
    through: they say that the manager itself, or a test of it, is wrong.
    """

    def __init__(self, listener: BlockListener) -> None:
        self._listener = listener

    def on_match(
        self, request_id: RequestId, window_size: WindowSize, blocks: Sequence[KVCacheBlock], num_tokens: int
    ) -> None:
        """See ``BlockListener``."""
        self._tell("on_match", lambda: self._listener.on_match(request_id, window_size, blocks, num_tokens))

    def on_allocation(self, request_id: RequestId, window_size: WindowSize) -> None:
        """See ``BlockListener``."""
        self._tell("on_allocation", lambda: self._listener.on_allocation(request_id, window_size))

    def on_removed(self, block: KVCacheBlock, window_size: WindowSize, reason: RemovalReason) -> None:
        """See ``BlockListener``."""
        self._tell("on_removed", lambda: self._listener.on_removed(block, window_size, reason))

    def on_moved(self, block: KVCacheBlock, window_size: WindowSize, level: int) -> None:
        """See ``BlockListener``."""
        self._tell("on_moved", lambda: self._listener.on_moved(block, window_size, level))

    @staticmethod
    def _tell(name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (LogicError, AssertionError):
            raise
        except Exception:
            _LOGGER.exception("%s of the block listener failed; the manager goes on without it", name)
