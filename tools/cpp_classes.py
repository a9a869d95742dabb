"""C++ classes of the KV cache manager with their methods: the data behind tools/cpp_names.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class CppClass(NamedTuple):
    """The methods of one C++ class and where they are in Python.

    Methods are written ``name()`` without and ``name(..)`` with parameters; overloads stand once. A name already in
    Python's spelling exists only in the original's bindings.
    """

    name: str
    header: str
    python: str
    """``module:Class``, or a module for free functions; ``package.*`` looks through the modules of a package."""
    methods: str
    private: str = ""
    """Private methods worth finding again; in Python they may have a leading underscore."""
    also: str = ""
    """Further places to look, for a class that is cut into parts; separated by spaces."""
    renamed: Mapping[str, tuple[str, str]] = {}
    """Method -> (attribute of the class, or ``module:Name`` or ``module:Class.name``; reason)."""
    not_ported: Mapping[str, str] = {}
    """Method -> reason."""


SOURCE: Final = (
    "The C++ side is TensorRT-LLM's batch manager in the state that has the two-phase `addSequenceBatch`,\n"
    "`truncateBlocks`, `analyzePrefixReuse` and placeholders by sentinel id; no single-request `addSequence` any more."
)

_POOL: Final = "trtkv.pools.kv_cache_block_pool:KVCacheBlockPool."
_TENSORS: Final = "trtkv.pools.pool_tensors:PoolTensors."
_MEMORY: Final = "managers only count; memory is a layer of its own"
_NO_STREAM: Final = "no CUDA stream in the manager; the copy engine has its own"
_MANAGER: Final = "trtkv.manager.kv_cache_manager:KVCacheManager."
_PARTS: Final = "trtkv.window_block_manager."
_POLICY: Final = "trtkv.eviction.eviction_policy:WindowEvictionPolicy."
_SETTINGS: Final = "trtkv.records.cache_settings:"
_FEW_HAVE_ONE: Final = "few blocks have one, so the eviction policy keeps it"
_CONSTRUCTOR: Final = "done by the constructor"

KV_CACHE_MANAGER: Final = CppClass(
    name="KVCacheManager",
    header="kvCacheManager.h, BaseKVCacheManager included",
    python="trtkv.manager.kv_cache_manager:KVCacheManager",
    methods="""
        allocatePools(..) releasePools() startScheduling() getTokensPerBlock() getMaxNumBlocks() getUsedNumBlocks()
        getNumFreeBlocks() getNumPools() getNumReusedBlocks() getNumMissedBlocks() getNumAllocTotalBlocks()
        getNumAllocNewBlocks() getNumFreeBlocksPerWindowSize() getKvCacheStats() getIterationStats()
        getOffsetTableDimensions() getLatestEvents(..) getBlockManager() getNeededBlocksOneStep(..)
        setSpecDecodingBudget(..) getRemainingBlocksToCompletion(..) pinBlocks(..) addToken(..) getTokenCount(..)
        addSequenceBatch(..) removeSequence(..) schedulingRemoveSequence(..) getBlockPoolPointers()
        getBlockScalePoolPointers() getLayerToPoolMapping() getBlockOffsetsOfBatch(..) copyBlockOffsets(..)
        isEnableBlockReuse() isEnablePartialReuse() isEnableIndexerKCache() getIndexerKCacheIndexHeadDim()
        getIndexerKCacheQuantBlockSize() getIndexerKCacheUseFp4() removeToken(..) rewindKVCache(..) getSequence(..)
        isCrossKv() getCacheType() analyzePrefixReuse(..) storeContextBlocks(..) storeNewBlock(..)
        storeBlocksForReuse(..) getCacheBlockIds(..) getBatchCacheBlockIds(..) getLastBlockId(..)
        getUniquePrimaryPool() getPrimaryPool(..) getIndexerKCachePool() getPoolLayerIdx(..) isPoolLayerFirst(..)
        syncTransferManagerWithBufferManager() refreshBlocks() flushIterationEvents() resetReuseState()
        getSinkBubbleLength(..) calculateCacheSizePerTokenForSingleWindowSize(..) groupLayersByWindowSize(..)
        calculateFreeMemBytes(..) calculateMaxNumBlocks(..) calculateMaxBlockRequirements(..)
        calculateMaxBlockRequirementsPerBeam(..) calculateMaxAttentionWindow(..) getMaxCapacityBatchSize(..)
        findBlocksInReuseTreeByBlockKey(..) findBlocksInReuseTreeByBlockKeys(..) unpinBlocksById(..)
        truncateBlocks(..) getPriorityByBlockId(..) commitAndGetBlockHashesForRequest(..)
        copyLinearAttentionBlock(..) copyLinearAttentionBlockBatch(..) scheduling_has_free_blocks(..)
        is_variable_window() copy_batch_block_offsets(..) get_primary_pool_data(..) get_indexer_k_cache_pool_data(..)
    """,
    renamed={
        "removeToken(..)": ("rewind_kv_cache", "a rewind by one token"),
        "getPoolLayerIdx(..)": (
            "trtkv.manager.block_manager:BlockManager.get_pool_layer_idx",
            "asked at the block manager",
        ),
        "isPoolLayerFirst(..)": (
            _POOL + "layer_first_layout",
            "a field of the pool",
        ),
        "getLayerToPoolMapping()": (_TENSORS + "layer_to_pool_mapping", _MEMORY),
        "getBlockPoolPointers()": (_TENSORS + "block_pool_pointers", _MEMORY),
        "getBlockScalePoolPointers()": (_TENSORS + "block_scale_pool_pointers", _MEMORY),
        "getPrimaryPool(..)": (_TENSORS + "get_primary_pool_data", _MEMORY),
        "getIndexerKCachePool()": (_TENSORS + "get_indexer_k_cache_pool_data", "per layer, as the bindings give it"),
        "get_primary_pool_data(..)": (_TENSORS + "get_primary_pool_data", _MEMORY),
        "get_indexer_k_cache_pool_data(..)": (_TENSORS + "get_indexer_k_cache_pool_data", _MEMORY),
        "copy_batch_block_offsets(..)": ("copy_block_offsets", "called once per request"),
    },
    not_ported={
        "calculateFreeMemBytes(..)": "memory sizes come in by argument; whoever owns the device asks it",
    },
)

BLOCK_MANAGER: Final = CppClass(
    name="BlockManager",
    header="kvCacheManager.h",
    python="trtkv.manager.block_manager:BlockManager",
    also=f"trtkv.manager.kv_cache_manager:KVCacheManager {_PARTS}*",
    methods="""
        isEnableIndexerKCache() getIndexerKCacheQuantBlockSize() getIndexerKCacheIndexHeadDim()
        getIndexerKCacheUseFp4() isEnablePartialReuse() calculateWindowSizeToShare(..) allocatePools(..)
        addSequenceBatch(..) allocateBlock(..) copyLinearAttentionBlock(..) replaceSharedBlock(..) releaseBlocks(..)
        storeBlocksForReuse(..) schedulingReleaseBlocks(..) pinBlocks(..) unpinBlocksById(..) releaseLastBlock(..)
        setOffsets(..) analyzePrefixReuse(..) onboardBlock(..) offloadBlock(..) storeBlocks(..)
        verifyQueueIntegrity(..) releasePools() startScheduling() getNumFreeBlocksPerWindowSize()
        getPoolConfigurations() getDataTypePerWindow() getSizePerHeadForWindow(..) getDataTypeForWindow(..)
        getNumFreeBlocks() schedulingHasFreeBlocks(..) getNumAllocTotalBlocks() getFirstWindowSize()
        getLastWindowSize() getNumAllocNewBlocks() getNumReusedBlocks() getNumMissedBlocks() getNumSecondaryBlocks()
        getNumFreeSecondaryBlocks() getAndResetIterationStats() getNumLayers() getCacheType() getLayerPoolIdx(..)
        getPoolLayerIdx(..) isPoolLayerFirst(..) getTokensPerBlock() getStreamDevice() getLatestEvents(..)
        flushIterationEvents() getPoolWindowSize(..) getBlockSize(..) getNumPools(..) getWindowSizesMetadata()
        getWindowSizeMetadata(..) getLinearAttentionMetadata() isVariableWindow()
        getMaxBlockPerSeqWhenSingleWindowSize() isVariableGQA() getPrimaryPool(..) getSecondaryPool(..)
        getNumAllocatedBlocks() getMaxNumBlocks() getBlockById(..) findBlocksInReuseTreeByBlockKey(..)
        findBlocksInReuseTreeByBlockKeys(..) getNumPrimaryBlocks() containsBlockScales(..) storeContextBlocks(..)
        storeNewBlock(..) syncTransferManagerWithBufferManager() refreshBlocks() getWindowBlockManager(..)
        getBufferManager(..) getPool(..) getRecurrentStatesPool() updateSequenceCacheBlockOffsets(..)
        updateCacheBlockOffsetsAtIdx(..) adjustBlocksIfNeeded(..) truncateBlocks(..) resetReuseState()
    """,
    renamed={
        "updateCacheBlockOffsetsAtIdx(..)": (_PARTS + "sequences:write_slot_at", "asked at the window"),
        "setOffsets(..)": (
            _PARTS + "sequences:write_slots",
            "keeps slots; offsets of pools are computed when a table is written",
        ),
        "updateSequenceCacheBlockOffsets(..)": (_PARTS + "sequences:write_slots", "asked at the window"),
        "getDataTypePerWindow()": ("pool_configurations", "one record per window"),
        "getDataTypeForWindow(..)": ("pool_configurations", "one record per window"),
        "getSizePerHeadForWindow(..)": ("pool_configurations", "one record per window"),
        "getWindowSizeMetadata(..)": ("window_sizes_metadata", "a mapping from window size"),
        "getMaxBlockPerSeqWhenSingleWindowSize()": (_MANAGER + "max_blocks_per_seq", "of the widest window"),
        "isPoolLayerFirst(..)": (
            _POOL + "layer_first_layout",
            "a field of the pool",
        ),
        "containsBlockScales(..)": (
            _POOL + "contains_block_scales",
            "a field of the pool",
        ),
        "getBlockSize(..)": (_POOL + "block_size", "a field of the pool"),
        "getPoolWindowSize(..)": (_POOL + "window_size", "a field of the pool"),
        "getRecurrentStatesPool()": ("get_pool", "the pool of the window RECURRENT_STATES"),
        "getPrimaryPool(..)": (_POOL + "primary", "a field of the pool"),
        "getSecondaryPool(..)": (_POOL + "secondary", "a field of the pool"),
    },
    not_ported={
        "getStreamDevice()": _NO_STREAM,
        "getBufferManager(..)": _NO_STREAM,
    },
)

WINDOW_BLOCK_MANAGER: Final = CppClass(
    name="WindowBlockManager",
    header="kvCacheManager.h",
    python="trtkv.window_block_manager.*:WindowBlockManager",
    also="trtkv.window_block_manager.*",
    methods="""
        isEnableIndexerKCache() getIndexerKCacheQuantBlockSize() getIndexerKCacheIndexHeadDim()
        getIndexerKCacheUseFp4() allocatePools(..) releasePools() createIndexerKCachePools() startScheduling()
        addSequenceBatch(..) allocateBlock(..) copyLinearAttentionBlock(..) replaceSharedBlock(..)
        storeBlocksForReuse(..) storeNewBlock(..) pinBlocks(..) releaseBlocks(..) schedulingReleaseBlocks(..)
        updateLastCacheBlockOffsets(..) releaseLastBlock(..) detachFrontBlock(..) adjustBlocksIfNeeded(..)
        getWindowSize() getDataType() getSizePerHead() getLogPrefix() getNumFreeBlocks() getNumAllocTotalBlocks()
        getNumAllocNewBlocks() getNumReusedBlocks() getNumAllocatedBlocks() getNumMissedBlocks()
        getNumFreeSecondaryBlocks() getAndResetIterationStats() hasFreeBlocks(..) schedulingHasFreeBlocks(..)
        getMaxNumBlocks() getBlockById(..) getTokensPerBlock() getBlockSize(..) getNumEltsPerContainer()
        getNumPools(..) getPool(..) containsBlockScales(..) getNumPrimaryBlocks() getNumSecondaryBlocks()
        getLayerPoolIdx(..) getPoolLayerIdx(..) setOffsets(..) onboardBlock(..) offloadBlock(..)
        analyzePrefixReuse(..) getBufferManager() syncTransferManagerWithBufferManager() refreshBlocks()
        blockInRadixTree(..) storeContextBlocks(..) storeBlocks(..) verifyQueueIntegrity() isSWA()
        isEnablePartialReuse() findBlocksInReuseTreeByBlockKey(..) findBlocksInReuseTreeByBlockKeys(..)
        unpinBlocksById(..) truncateBlocks(..) resetReuseState()
    """,
    private="""
        searchReuseTree(..) findReusableBlockMatches(..) tryAllocatePlaceholderForLinearAttention(..)
        addBlockToBeam(..) addBlockToAllBeams(..) claimMatchingBlocks(..) buildClaimResultMetadata(..)
        onboardAndAllocateBlocks(..) releaseSubtree(..) getFreeBlock(..) freeLeafBlock(..) createBlockScalePools(..)
        isRecurrentState()
    """,
    renamed={
        "allocatePools(..)": (_TENSORS + "allocate_pools", _MEMORY),
        "releasePools()": (_TENSORS + "release_pools", _MEMORY),
        "isEnableIndexerKCache()": (_SETTINGS + "IndexerKCacheSettings", "one record; None when off"),
        "getIndexerKCacheQuantBlockSize()": (
            _SETTINGS + "IndexerKCacheSettings.quant_block_size",
            "one record; None when off",
        ),
        "getIndexerKCacheIndexHeadDim()": (
            _SETTINGS + "IndexerKCacheSettings.index_head_dim",
            "one record; None when off",
        ),
        "getIndexerKCacheUseFp4()": (
            _SETTINGS + "IndexerKCacheSettings.use_fp4",
            "one record; None when off",
        ),
        "getDataType()": (_PARTS + "pools:WindowPools.dtype", "a field of the pools"),
        "getNumAllocTotalBlocks()": (_PARTS + "counters:BlockCounters.alloc_total", "one record of counters"),
        "getNumAllocNewBlocks()": (_PARTS + "counters:BlockCounters.alloc_new", "one record of counters"),
        "getNumReusedBlocks()": (_PARTS + "counters:BlockCounters.reused", "one record of counters"),
        "getNumMissedBlocks()": (_PARTS + "counters:BlockCounters.missed", "one record of counters"),
        "getPool(..)": (_PARTS + "pools:WindowPools.pools", "a list"),
        "getLayerPoolIdx(..)": (_PARTS + "pools:WindowPools.layer_to_pool_index", "a mapping"),
        "getPoolLayerIdx(..)": (_PARTS + "pools:WindowPools.layer_to_index_within_pool", "a mapping"),
        "setOffsets(..)": (
            _PARTS + "sequences:write_slots",
            "keeps slots; offsets of pools are computed when a table is written",
        ),
        "getBlockSize(..)": (_POOL + "block_size", "a field of the pool"),
        "containsBlockScales(..)": (
            _POOL + "contains_block_scales",
            "a field of the pool",
        ),
        "createIndexerKCachePools()": (_PARTS + "pools:WindowPools", "the constructor makes all pools"),
        "createBlockScalePools(..)": (_PARTS + "pools:WindowPools", "the constructor makes all pools"),
        "updateLastCacheBlockOffsets(..)": (_PARTS + "sequences:write_slot_at", "for any position"),
        "tryAllocatePlaceholderForLinearAttention(..)": (
            _PARTS + "recurrent:RecurrentSequenceBlocks._add_position",
            "decides between a placeholder and a block",
        ),
        "claimMatchingBlocks(..)": (_PARTS + "planning:ClaimPlanner.plan", "plans before anything is changed"),
        "buildClaimResultMetadata(..)": (_PARTS + "planning:ClaimPlanner.plan", "plans before anything is changed"),
        "onboardAndAllocateBlocks(..)": (
            _PARTS + "loading:BlockLoader.add_sequence_batch",
            "carries out what was planned, claims first",
        ),
        "hasFreeBlocks(..)": ("num_free_blocks", "callers compare"),
        "syncTransferManagerWithBufferManager()": (
            "trtkv.transfers.kv_cache_transfer_manager:KVCacheTransferManager.sync_with_buffer_manager",
            "asked at the transfer manager",
        ),
        "verifyQueueIntegrity()": (_POLICY + "verify_queue_integrity", "asked at the free queues"),
        "blockInRadixTree(..)": (
            _PARTS + "recorded.recorded_claiming:RecordedBlockClaimer.is_announced",
            "as recorded; by default a block in the tree counts, whatever is above it",
        ),
        "releaseSubtree(..)": (
            _PARTS + "recorded.recorded_releasing:RecordedBlockReleaser._release_subtree",
            "as recorded; by default truncation walks nodes",
        ),
        "freeLeafBlock(..)": (_PARTS + "claiming:BlockClaimer.remove_from_tree", "one block, leaf or not"),
    },
    not_ported={
        "getBufferManager()": _NO_STREAM,
        "getLogPrefix()": "texts name the window themselves",
        "getNumEltsPerContainer()": "element sizes are in bits (DataType.num_bits), so nothing is packed by hand",
    },
)

KV_CACHE_BLOCK: Final = CppClass(
    name="KVCacheBlock",
    header="kvCacheManager.h",
    python="trtkv.blocks.kv_cache_block:KVCacheBlock",
    methods="""
        startScheduling() getBlockId() getNextBlocks() attachToLookupNode(..) detachFromLookupNode() setAsRoot(..)
        getMemoryPoolBlockIndex() isPrimary() swapMemoryPoolBlockOffset(..) incRefCount() decRefCount()
        decSchedulingRefCount() hasRefs() hasSchedulingRefs() setBlockKey(..) getBlockKey() getUniqueTokens()
        getLookupNode() getPrevBlock() getPrevBlockInSeq() setPrevBlockInSeq(..) addNextBlock(..)
        removeNextBlock(..) isPlaceholder() createPlaceholder(..) detachDescendantsFromLookupTree()
        freeBlockAndAllDescendants() findMatchingBlock(..) freeLeafBlock() isFull() isShared() isLeaf() isDetached()
        setPriority(..) getPriority() setDurationMs(..) getDurationMs() setExpirationTime(..) getExpirationTime()
        setHash(..) getHash() getExtraKeys()
    """,
    renamed={
        "getUniqueTokens()": ("block_key", "the key holds the tokens; BlockKey.unpack shows them"),
        "getExtraKeys()": ("block_key", "the key holds them; BlockKey.unpack shows them"),
        "createPlaceholder(..)": (
            "trtkv.blocks.kv_cache_block:PlaceholderBlock",
            "a class of its own; create_swa_placeholder makes the one of sliding windows",
        ),
        "hasSchedulingRefs()": (
            "trtkv.window_block_manager.releasing:BlockReleaser.get_scheduling_ref_count",
            "the simulation counts per block removed in it",
        ),
        "setPrevBlockInSeq(..)": ("prev_block_in_seq", "a plain field"),
        "setPriority(..)": ("priority", "a plain field"),
        "setHash(..)": ("hash_link", "a plain field"),
        "setDurationMs(..)": (_POLICY + "claim_block", _FEW_HAVE_ONE),
        "getDurationMs()": (_POLICY + "get_duration_ms", _FEW_HAVE_ONE),
        "setExpirationTime(..)": (_POLICY + "release_block", _FEW_HAVE_ONE),
        "getExpirationTime()": (_POLICY + "get_expiration_time", _FEW_HAVE_ONE),
    },
    not_ported={
        "addNextBlock(..)": "used by the original's tests only; storing goes through the tree",
        "removeNextBlock(..)": "used by the original's tests only; the tree prunes by itself",
        "detachDescendantsFromLookupTree()": "eviction detaches one block, truncation walks the tree",
        "freeBlockAndAllDescendants()": "eviction detaches one block, truncation walks the tree",
        "findMatchingBlock(..)": "matching is one walk in window_block_manager",
        "startScheduling()": "the simulation counts per block removed in it, in window_block_manager.releasing",
        "decSchedulingRefCount()": "the simulation counts per block removed in it, in window_block_manager.releasing",
    },
)

GENERATION_REQUEST: Final = CppClass(
    name="GenerationRequest",
    header="kvCacheManager.h",
    python="trtkv.blocks.generation_request:GenerationRequest",
    methods="""
        addNewTokens(..) removeTokens(..) getRequestId() getNumTokens() getNumFrontBlocksRemoved(..) getBeamWidth()
        getCacheBlockIds(..) getCacheBlockIndices(..) addCacheBlock(..) changeCacheBlock(..) clearCacheBlocks(..)
        removeFrontBlock(..) removeLastBlock(..) getDecodeRetentionPriority() getDecodeDurationMs()
        getTransferMode() getDirectory() getCurrentPrepopulatedPromptLen() setCurrentPrepopulatedPromptLen(..)
    """,
    renamed={
        "addNewTokens(..)": ("num_tokens", "a plain field"),
        "removeTokens(..)": ("num_tokens", "a plain field"),
        "getCacheBlockIndices(..)": (
            "trtkv.blocks.generation_request:SequenceWindow.slots",
            "one slot per position; offsets of pools are computed when a table is written",
        ),
        "addCacheBlock(..)": ("get_window", "the parts of a window block manager change the record of that window"),
        "changeCacheBlock(..)": ("get_window", "the parts of a window block manager change the record of that window"),
        "clearCacheBlocks(..)": ("get_window", "the parts of a window block manager change the record of that window"),
        "removeFrontBlock(..)": ("get_window", "the parts of a window block manager change the record of that window"),
        "removeLastBlock(..)": ("get_window", "the parts of a window block manager change the record of that window"),
    },
)

LRU_EVICTION_POLICY: Final = CppClass(
    name="LRUEvictionPolicy",
    header="evictionPolicy.h",
    python="trtkv.eviction.eviction_policy:WindowEvictionPolicy",
    methods="""
        initialize(..) initializePlaceholders(..) getFreeBlock(..) releaseBlock(..) getNumFreeBlocks(..)
        claimBlock(..) refresh() verifyQueueIntegrity() getTime()
    """,
    not_ported={
        "initialize(..)": _CONSTRUCTOR,
        "initializePlaceholders(..)": _CONSTRUCTOR,
        "getTime()": "the clock is an argument of the constructor",
    },
)

KV_CACHE_EVENT_MANAGER: Final = CppClass(
    name="KVCacheEventManager",
    header="kvCacheEventManager.h",
    python="trtkv.events.kv_cache_event_manager:KVCacheEventManager",
    methods="""
        enqueueCreatedEvent(..) enqueueStoredEvent(..) enqueueRemovedEvent(..) enqueueUpdatedEvent(..) getEvents(..)
        flush() worker() exchangeAttentionDpThread()
    """,
    not_ported={
        "worker()": "flush hands events over at once; there is no thread in between",
        "exchangeAttentionDpThread()": "ranks gather their events where they read them; there is no thread",
    },
)

KV_CACHE_TRANSFER_MANAGER: Final = CppClass(
    name="KVCacheTransferManager",
    header="kvCacheTransferManager.h",
    python="trtkv.transfers.kv_cache_transfer_manager:KVCacheTransferManager",
    methods="onboard(..) offload(..) syncWithBufferManager() syncTransfers() getAndResetTransferStats()",
    private="getPendingTransferIndex(..) copyBlock(..) computeBlockTransferBytes(..) computeBlockPointer(..)",
    renamed={
        "computeBlockTransferBytes(..)": (
            "trtkv.transfers.copy_engine:CopyEngine.copy_block",
            "the engine reports the bytes it moved",
        ),
        "copyBlock(..)": ("trtkv.transfers.copy_engine:CopyEngine.copy_block", "the engine moves the bytes"),
        "computeBlockPointer(..)": ("trtkv.pools.pool_tensors:view_block", "a view of the tensor"),
    },
    not_ported={
        "getPendingTransferIndex(..)": "the copy engine orders its own reads and writes",
    },
)

NODE: Final = CppClass(
    name="Node",
    header="templatedTrie.h",
    python="trtkv.blocks.templated_trie:Node",
    methods="""
        setPrevNode(..) insertNode(..) clearNode(..) trySetValue(..) clearValue(..) getValue(..) findMatchingNode(..)
        getParentNode() hasChildren() getChildKeyValues(..) findOrInsertChild(..) findPartiallyMatchingNodes(..)
    """,
    renamed={
        "getParentNode()": ("parent", "a plain field"),
        "setPrevNode(..)": ("parent", "a plain field"),
        "clearNode(..)": ("remove_node", "unlinks only; prune() goes upwards"),
        "getChildKeyValues(..)": ("ordered_children", "values are asked at the children"),
        "findOrInsertChild(..)": ("trtkv.blocks.templated_trie:Trie.insert_nodes", "finds or inserts a whole prefix"),
        "findPartiallyMatchingNodes(..)": ("find_partial_matches", "children that match equally come as one group"),
    },
)

TRIE: Final = CppClass(
    name="Trie",
    header="templatedTrie.h",
    python="trtkv.blocks.templated_trie:Trie",
    methods="getRoot() insertNodes(..) lookupNodes(..) getEdges() countNumberOfNodes() lookupValues(..)",
    renamed={"lookupValues(..)": ("lookup_nodes", "values are asked at the nodes found")},
    not_ported={"getEdges()": "used by the original's tests only"},
)

UNIFIED_BLOCK_TREE: Final = CppClass(
    name="UnifiedBlockTree",
    header="radixBlockTree.h",
    python="trtkv.blocks.radix_block_tree:UnifiedBlockTree",
    methods="insertBlock(..) lookupBlock(..) lookupBlocksAtAllPositions(..) insertBlocks(..)",
    renamed={
        "insertBlocks(..)": (
            "trtkv.window_block_manager.storing:BlockStorer.store_blocks",
            "one way of storing for all kinds of windows",
        ),
    },
)

BLOCK_KEY: Final = CppClass(
    name="BlockKey",
    header="blockKey.h",
    python="trtkv.keys.block_key:BlockKey",
    methods="supportsPartialMatching() numMatchingTokens(..) getNumTokens() shorten(..)",
)

BLOCK_KEY_FUNCTIONS: Final = CppClass(
    name="functions of blockKey.h",
    header="blockKey.h, BlockKeyHasher and chopVectorIntoBlocks of kvCacheManager.h included",
    python="trtkv.keys.*",
    methods="""
        BlockKeyHasher::hash(..) buildBlockKeys(..) generateBlockHashExtraKeys(..) getStoredBlockHashes(..)
        chopVectorIntoBlocks(..)
    """,
    renamed={
        "BlockKeyHasher::hash(..)": (
            "trtkv.keys.key_hash:hash_block_key",
            "a function; also the method BlockKey.hash",
        ),
        "getStoredBlockHashes(..)": (
            "trtkv.manager.kv_cache_manager:KVCacheManager.commit_and_get_block_hashes_for_request",
            "the manager knows which blocks are full",
        ),
    },
)

LLM_REQUEST: Final = CppClass(
    name="LlmRequest",
    header="llmRequest.h, the part that concerns the cache and the schedulers",
    python="trtkv.records.llm_request:LlmRequest",
    methods="""
        getNumTokens(..) getTokens(..) getUniqueTokens(..) getInputTokensExtraIds() getEncoderTokens()
        getEncoderUniqueTokens() getEncoderOutputLen() getMultimodalHashes() getMultimodalPositions()
        getMultimodalLengths() getLoraTaskId() getKvCacheRetentionConfig() addNewToken(..) addNewTokens(..)
        setGeneratedTokens(..) getPromptLen() getPrepopulatedPromptLen() setPrepopulatedPromptLen(..)
        getEstimatedReusableTokens() setEstimatedReusableTokens(..) hasDraftTokens() getNumDraftTokens()
        discardDraftTokens(..) setDraftTokens(..) pause(..) setState(..) getState() hasReachedState(..)
        isEncoderInitState() isContextInitState() isContextFinished() isGenerationInProgressState()
        isDisaggGenerationInitState() setContextCurrentPosition(..) getContextCurrentPosition()
        getContextRemainingLength() setContextChunkSize(..) getContextChunkSize() isLastContextChunk()
        isFirstContextChunk() moveToNextContextChunk() isDummyRequest() getAllocTotalBlocksPerRequest()
        getAllocNewBlocksPerRequest() getReusedBlocksPerRequest() getMissedBlocksPerRequest()
        updateAllocTotalBlocksPerRequest(..) updateAllocNewBlocksPerRequest(..) updateReusedBlocksPerRequest(..)
        updateMissedBlocksPerRequest(..)
    """,
    renamed={
        "getUniqueTokens(..)": ("get_tokens", "extra ids are kept apart, in input_token_extra_ids"),
        "getEncoderUniqueTokens()": ("encoder_tokens", "encoder tokens have no extra ids"),
        "getInputTokensExtraIds()": ("input_token_extra_ids", "named like the constructor's argument"),
        "getMultimodalHashes()": ("multimodal_input", "one record holds hashes, positions and lengths"),
        "getMultimodalPositions()": ("multimodal_input", "one record holds hashes, positions and lengths"),
        "getMultimodalLengths()": ("multimodal_input", "one record holds hashes, positions and lengths"),
        "setDraftTokens(..)": ("set_num_draft_tokens", "only their number matters to the cache"),
        "updateAllocTotalBlocksPerRequest(..)": ("update_block_counters", "the four counters move together"),
        "updateAllocNewBlocksPerRequest(..)": ("update_block_counters", "the four counters move together"),
        "updateReusedBlocksPerRequest(..)": ("update_block_counters", "the four counters move together"),
        "updateMissedBlocksPerRequest(..)": ("update_block_counters", "the four counters move together"),
    },
    not_ported={"isEncoderInitState()": "schedulers compare the state itself"},
)

RETENTION_CONFIG: Final = CppClass(
    name="KvCacheRetentionConfig",
    header="executor.h",
    python="trtkv.records.retention_config:KvCacheRetentionConfig",
    methods="""
        getTokenRangeRetentionConfigs() getDecodeRetentionPriority() getDecodeDurationMs() getTransferMode()
        getDirectory() getPerBlockRetentionPriorityDuration(..)
    """,
)

LINEAR_ATTENTION_METADATA: Final = CppClass(
    name="LinearAttentionMetadata",
    header="kvCacheManager.h",
    python="trtkv.records.linear_attention:LinearAttentionMetadata",
    methods="""
        shouldAllocateRecurrentStates(..) calcNumBlocksNeededForReq(..) calcNumAdditionalBlocksNeededForReq(..)
        hasRecurrentStatesCache(..) hasLinearCache(..) calcMaxMemoryBlocks(..)
    """,
    renamed={
        "hasRecurrentStatesCache(..)": (
            "trtkv.records.linear_attention:has_recurrent_states_cache",
            "a function of the window",
        ),
        "hasLinearCache(..)": (
            "trtkv.records.linear_attention:has_recurrent_states_cache",
            "recurrent states are the only linear cache there is",
        ),
    },
)

_UNTIL: Final = "getNoScheduleUntilState() getNoScheduleAfterState() operator(..)"


def _capacity_scheduler(name: str) -> CppClass:
    return CppClass(name, "capacityScheduler.h", f"trtkv.scheduler.*:{name}", _UNTIL)


SCHEDULERS: Final = (
    _capacity_scheduler("MaxRequestsScheduler"),
    _capacity_scheduler("MaxUtilizationScheduler"),
    _capacity_scheduler("GuaranteedNoEvictScheduler"),
    _capacity_scheduler("StaticBatchScheduler"),
    CppClass("CapacityScheduler", "capacityScheduler.h", "trtkv.scheduler.*:CapacityScheduler", "operator(..)"),
    CppClass(
        name="MicroBatchScheduler",
        header="microBatchScheduler.h",
        python="trtkv.scheduler.*:MicroBatchScheduler",
        also="trtkv.scheduler.*",
        methods="""
            operator(..) make(..) setCtxRequestsChunkSize(..) setRuntimeMaxBatchSize(..) getMaxBatchSizeStatic()
            getMaxBatchSizeTunerRecommended() getMaxBatchSizeRuntime()
        """,
        private="fitDraftTokens(..)",
        not_ported={
            "make(..)": "the constructor does it",
            "setRuntimeMaxBatchSize(..)": "there is no tuner that would change it",
            "getMaxBatchSizeStatic()": "there is no tuner that would change it",
            "getMaxBatchSizeTunerRecommended()": "there is no tuner that would change it",
            "getMaxBatchSizeRuntime()": "there is no tuner that would change it",
        },
    ),
    CppClass(
        name="NoEvictScheduledBlocksManager",
        header="scheduledBlocksManager.h",
        python="trtkv.scheduler.*:NoEvictScheduledBlocksManager",
        methods="decrementReservedBlocks(..) enoughAvailableBlocks(..)",
        renamed={
            "decrementReservedBlocks(..)": ("commit_blocks", "reserves what enough_available_blocks has just sized"),
        },
    ),
    CppClass(
        name="MaxUtilizationScheduledBlocksManager",
        header="scheduledBlocksManager.h",
        python="trtkv.scheduler.*:MaxUtilizationScheduledBlocksManager",
        methods="prepareNewNumberOfBlocksIfWeEndUpScheduling(..) updateScheduledBlocks(..)",
    ),
)

CLASSES: Final[tuple[CppClass, ...]] = (
    KV_CACHE_MANAGER,
    BLOCK_MANAGER,
    WINDOW_BLOCK_MANAGER,
    KV_CACHE_BLOCK,
    GENERATION_REQUEST,
    LRU_EVICTION_POLICY,
    KV_CACHE_EVENT_MANAGER,
    KV_CACHE_TRANSFER_MANAGER,
    NODE,
    TRIE,
    UNIFIED_BLOCK_TREE,
    BLOCK_KEY,
    BLOCK_KEY_FUNCTIONS,
    LLM_REQUEST,
    RETENTION_CONFIG,
    LINEAR_ATTENTION_METADATA,
    *SCHEDULERS,
)
