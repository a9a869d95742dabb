// Brings rows of the block-offset table up to date from runs of changed blocks.
//
// Layout  table  [num_pools, num_rows, 2, max_blocks_per_seq] int32; [.., 0, ..] is K, [.., 1, ..] is V.
//         runs   [num_runs] int4 {window, row, first column, position of its first slot in slots}.
//         slots  [num_slots] int32: the slots of all runs, one run after another.
//         rules  [num_pools] int4 {window of the pool, entries per slot, distance from K to V, unused}.
// Grid    x: runs, y: pools. A thread takes every blockDim.x-th slot of its run and writes its K and V entry.
//
// A slot of NULL_ENTRY has no memory and is written as it is.

#define NULL_ENTRY (-1)

extern "C" __global__ void __launch_bounds__(256) scatter_block_offsets(
    int* __restrict__ table, const int4* __restrict__ runs, const int* __restrict__ slots,
    const int4* __restrict__ rules, int num_runs, int num_slots, int num_rows, int max_blocks_per_seq)
{
    const int pool = blockIdx.y;
    const int4 run = runs[blockIdx.x];
    const int4 rule = rules[pool];
    if (rule.x != run.x)
    {
        return;
    }
    const int begin = run.w;
    const int end = blockIdx.x + 1 < (unsigned) num_runs ? runs[blockIdx.x + 1].w : num_slots;
    const long long row_start = ((long long) pool * num_rows + run.y) * 2 * max_blocks_per_seq;
    int* k_entries = table + row_start + run.z;
    int* v_entries = k_entries + max_blocks_per_seq;

    for (int i = threadIdx.x; i < end - begin; i += blockDim.x)
    {
        const int slot = slots[begin + i];
        const bool is_null = slot == NULL_ENTRY;
        k_entries[i] = is_null ? NULL_ENTRY : slot * rule.y;
        v_entries[i] = is_null ? NULL_ENTRY : slot * rule.y + rule.z;
    }
}
