"""Everything about one attention window; ``WindowBlockManager`` puts the parts together."""

from trtkv.window_block_manager.manager import WindowBlockManager as WindowBlockManager
