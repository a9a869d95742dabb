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
    """Further place to look, for a class that is cut into parts."""
    renamed: Mapping[str, tuple[str, str]] = {}
    """Method -> (attribute of the class, or ``module:Name`` or ``module:Class.name``; reason)."""
    not_ported: Mapping[str, str] = {}
    """Method -> reason."""


SOURCE: Final = (
    "The C++ side is TensorRT-LLM's batch manager in the state that has the two-phase `addSequenceBatch`,\n"
    "`truncateBlocks`, `analyzePrefixReuse` and placeholders by sentinel id; no single-request `addSequence` any more."
)

_NO_MEMORY: Final = "managers hold no memory; the copy engine makes and owns the tensors"
_NO_STREAM: Final = "no CUDA stream in the manager; the copy engine has its own"
_IN_STATS: Final = "a field of the statistics"
_CONSTRUCTOR: Final = "done by the constructor"

KV_CACHE_MANAGER: Final = CppClass(
    name="KVCacheManager",
    header="kvCacheManager.h, BaseKVCacheManager included",
    python="trtkv.kv_cache_manager:KVCacheManager",
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
        "getNumReusedBlocks()": ("get_kv_cache_stats", _IN_STATS),
        "getNumMissedBlocks()": ("get_kv_cache_stats", _IN_STATS),
        "getNumAllocTotalBlocks()": ("get_kv_cache_stats", _IN_STATS),
        "getNumAllocNewBlocks()": ("get_kv_cache_stats", _IN_STATS),
        "getNumFreeBlocksPerWindowSize()": ("get_kv_cache_stats", _IN_STATS),
        "getSequence(..)": ("sequences", "a mapping from request id to GenerationRequest"),
        "removeToken(..)": ("rewind_kv_cache", "a rewind by one token"),
        "getPoolLayerIdx(..)": ("trtkv.block_manager:BlockManager.get_pool_layer_idx", "asked at the block manager"),
        "isPoolLayerFirst(..)": (
            "trtkv.kv_cache_block_pool:KVCacheBlockPool.layer_first_layout",
            "a field of the pool",
        ),
        "getLayerToPoolMapping()": (
            "trtkv.block_manager:BlockManager.get_layer_pool_idx",
            "asked per layer at the block manager; the device copy of the table belongs to the executor",
        ),
        "copyLinearAttentionBlockBatch(..)": ("copy_linear_attention_block", "called once per request"),
        "copy_batch_block_offsets(..)": ("copy_block_offsets", "called once per request"),
    },
    not_ported={
        "allocatePools(..)": _NO_MEMORY,
        "releasePools()": _NO_MEMORY,
        "getBlockPoolPointers()": _NO_MEMORY,
        "getBlockScalePoolPointers()": _NO_MEMORY,
        "getUniquePrimaryPool()": _NO_MEMORY,
        "getPrimaryPool(..)": _NO_MEMORY,
        "getIndexerKCachePool()": _NO_MEMORY,
        "get_primary_pool_data(..)": _NO_MEMORY,
        "get_indexer_k_cache_pool_data(..)": _NO_MEMORY,
        "calculateFreeMemBytes(..)": "memory sizes come in by argument; whoever owns the device asks it",
    },
)

BLOCK_MANAGER: Final = CppClass(
    name="BlockManager",
    header="kvCacheManager.h",
    python="trtkv.block_manager:BlockManager",
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
        "calculateWindowSizeToShare(..)": (
            "trtkv.capacity_estimation:calculate_window_size_to_share",
            "pure arithmetic",
        ),
        "getWindowBlockManager(..)": ("window_block_managers", "a mapping from window size"),
        "isPoolLayerFirst(..)": (
            "trtkv.kv_cache_block_pool:KVCacheBlockPool.layer_first_layout",
            "a field of the pool",
        ),
        "containsBlockScales(..)": (
            "trtkv.kv_cache_block_pool:KVCacheBlockPool.contains_block_scales",
            "a field of the pool",
        ),
        "getBlockSize(..)": ("trtkv.kv_cache_block_pool:KVCacheBlockPool.block_size", "a field of the pool"),
        "getPoolWindowSize(..)": ("trtkv.kv_cache_block_pool:KVCacheBlockPool.window_size", "a field of the pool"),
        "getRecurrentStatesPool()": ("get_pool", "the pool of the window RECURRENT_STATES"),
    },
    not_ported={
        "allocatePools(..)": _NO_MEMORY,
        "releasePools()": _NO_MEMORY,
        "getPrimaryPool(..)": _NO_MEMORY,
        "getSecondaryPool(..)": _NO_MEMORY,
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
        "getBlockSize(..)": ("trtkv.kv_cache_block_pool:KVCacheBlockPool.block_size", "a field of the pool"),
        "containsBlockScales(..)": (
            "trtkv.kv_cache_block_pool:KVCacheBlockPool.contains_block_scales",
            "a field of the pool",
        ),
    },
    not_ported={
        "allocatePools(..)": _NO_MEMORY,
        "releasePools()": _NO_MEMORY,
        "getBufferManager()": _NO_STREAM,
        "getLogPrefix()": "texts name the window themselves",
        "getNumEltsPerContainer()": "element sizes are in bits (DataType.num_bits), so nothing is packed by hand",
    },
)

KV_CACHE_BLOCK: Final = CppClass(
    name="KVCacheBlock",
    header="kvCacheManager.h",
    python="trtkv.kv_cache_block:KVCacheBlock",
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
        "isDetached()": ("lookup_node", "None when detached"),
        "freeLeafBlock()": ("detach_from_lookup_node", "only one block is ever detached at a time"),
    },
    not_ported={
        "getNextBlocks()": "children belong to the tree: Node.children",
        "addNextBlock(..)": "used by the original's tests only; storing goes through the tree",
        "removeNextBlock(..)": "used by the original's tests only; the tree prunes by itself",
        "detachDescendantsFromLookupTree()": "eviction detaches one block, truncation walks the tree",
        "freeBlockAndAllDescendants()": "eviction detaches one block, truncation walks the tree",
        "findMatchingBlock(..)": "matching is one walk in window_block_manager",
        "isShared()": "used by the original's tests only; ref_count tells",
    },
)

GENERATION_REQUEST: Final = CppClass(
    name="GenerationRequest",
    header="kvCacheManager.h",
    python="trtkv.generation_request:GenerationRequest",
    methods="""
        addNewTokens(..) removeTokens(..) getRequestId() getNumTokens() getNumFrontBlocksRemoved(..) getBeamWidth()
        getCacheBlockIds(..) getCacheBlockIndices(..) addCacheBlock(..) changeCacheBlock(..) clearCacheBlocks(..)
        removeFrontBlock(..) removeLastBlock(..) getDecodeRetentionPriority() getDecodeDurationMs()
        getTransferMode() getDirectory() getCurrentPrepopulatedPromptLen() setCurrentPrepopulatedPromptLen(..)
    """,
)

LRU_EVICTION_POLICY: Final = CppClass(
    name="LRUEvictionPolicy",
    header="evictionPolicy.h",
    python="trtkv.eviction_policy:LRUEvictionPolicy",
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
    python="trtkv.kv_cache_event_manager:KVCacheEventManager",
    methods="""
        enqueueCreatedEvent(..) enqueueStoredEvent(..) enqueueRemovedEvent(..) enqueueUpdatedEvent(..) getEvents(..)
        flush() worker() exchangeAttentionDpThread()
    """,
    private="enqueueEvent(..)",
    not_ported={
        "worker()": "flush hands events over at once; there is no thread in between",
        "exchangeAttentionDpThread()": "ranks are gathered when events are read; there is no thread",
    },
)

KV_CACHE_TRANSFER_MANAGER: Final = CppClass(
    name="KVCacheTransferManager",
    header="kvCacheTransferManager.h",
    python="trtkv.kv_cache_transfer_manager:KVCacheTransferManager",
    methods="onboard(..) offload(..) syncWithBufferManager() syncTransfers() getAndResetTransferStats()",
    private="getPendingTransferIndex(..) copyBlock(..) computeBlockTransferBytes(..) computeBlockPointer(..)",
    renamed={
        "computeBlockTransferBytes(..)": (
            "trtkv.copy_engine:CopyEngine.copy_block",
            "the engine reports the bytes it moved",
        ),
    },
    not_ported={"computeBlockPointer(..)": _NO_MEMORY},
)

NODE: Final = CppClass(
    name="Node",
    header="templatedTrie.h",
    python="trtkv.templated_trie:Node",
    methods="""
        setPrevNode(..) insertNode(..) clearNode(..) trySetValue(..) clearValue(..) getValue(..) findMatchingNode(..)
        getParentNode() hasChildren() getChildKeyValues(..) findOrInsertChild(..) findPartiallyMatchingNodes(..)
    """,
    renamed={"getParentNode()": ("parent", "short, and a tree has no other parents")},
)

TRIE: Final = CppClass(
    name="Trie",
    header="templatedTrie.h",
    python="trtkv.templated_trie:Trie",
    methods="getRoot() insertNodes(..) lookupNodes(..) getEdges() countNumberOfNodes() lookupValues(..)",
)

UNIFIED_BLOCK_TREE: Final = CppClass(
    name="UnifiedBlockTree",
    header="radixBlockTree.h",
    python="trtkv.radix_block_tree:UnifiedBlockTree",
    methods="insertBlock(..) lookupBlock(..) lookupBlocksAtAllPositions(..) insertBlocks(..)",
)

BLOCK_KEY: Final = CppClass(
    name="BlockKey",
    header="blockKey.h",
    python="trtkv.block_key:BlockKey",
    methods="supportsPartialMatching() numMatchingTokens(..) getNumTokens() shorten(..)",
)

BLOCK_KEY_FUNCTIONS: Final = CppClass(
    name="functions of blockKey.h",
    header="blockKey.h, BlockKeyHasher and chopVectorIntoBlocks of kvCacheManager.h included",
    python="trtkv.block_key",
    methods="""
        BlockKeyHasher::hash(..) buildBlockKeys(..) generateBlockHashExtraKeys(..) getStoredBlockHashes(..)
        chopVectorIntoBlocks(..)
    """,
    renamed={
        "BlockKeyHasher::hash(..)": ("trtkv.block_key:hash_block_key", "a function; also the method BlockKey.hash"),
        "getStoredBlockHashes(..)": (
            "trtkv.kv_cache_manager:KVCacheManager.commit_and_get_block_hashes_for_request",
            "the manager knows which blocks are full",
        ),
    },
)

LLM_REQUEST: Final = CppClass(
    name="LlmRequest",
    header="llmRequest.h, the part that concerns the cache and the schedulers",
    python="trtkv.llm_request:LlmRequest",
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
    python="trtkv.retention_config:KvCacheRetentionConfig",
    methods="""
        getTokenRangeRetentionConfigs() getDecodeRetentionPriority() getDecodeDurationMs() getTransferMode()
        getDirectory() getPerBlockRetentionPriorityDuration(..)
    """,
)

LINEAR_ATTENTION_METADATA: Final = CppClass(
    name="LinearAttentionMetadata",
    header="kvCacheManager.h",
    python="trtkv.linear_attention:LinearAttentionMetadata",
    methods="""
        shouldAllocateRecurrentStates(..) calcNumBlocksNeededForReq(..) calcNumAdditionalBlocksNeededForReq(..)
        hasRecurrentStatesCache(..) hasLinearCache(..) calcMaxMemoryBlocks(..)
    """,
    renamed={
        "hasRecurrentStatesCache(..)": (
            "trtkv.linear_attention:has_recurrent_states_cache",
            "a function of the window",
        ),
        "hasLinearCache(..)": (
            "trtkv.linear_attention:has_recurrent_states_cache",
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
