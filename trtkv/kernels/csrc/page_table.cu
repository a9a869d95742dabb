// Turns a block table into the three arrays of a ragged page table: kv_indptr, kv_indices, kv_last_page_len.
//
// Layout  block_table      [num_rows, >= blocks] int32, rows row_stride entries apart.
//         kv_lens          [num_rows] int32, tokens of each row.
//         front_blocks     [num_rows] int32, leading blocks to leave out (they slid out of a window), or null for none.
//         kv_indptr        [num_rows + 1] int32, kv_last_page_len [num_rows] int32.
//         kv_indices       [>= pages of all rows] int32: block_table entry / divisor + addend.
// Grid    x: rows, blockDim.x == THREADS. The threads of one CTA first add up the pages of all rows before theirs,
//         then thread i writes every THREADS-th page of the row.
//
// An empty row has no pages and a last page length of 0.

#define THREADS 128

__device__ __forceinline__ int count_pages(
    const int* __restrict__ kv_lens, const int* __restrict__ front_blocks, int row, int tokens_per_block)
{
    const int blocks = (kv_lens[row] + tokens_per_block - 1) / tokens_per_block;
    const int pages = blocks - (front_blocks ? front_blocks[row] : 0);
    return pages > 0 ? pages : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) build_page_table(
    int* __restrict__ kv_indptr, int* __restrict__ kv_indices, int* __restrict__ kv_last_page_len,
    const int* __restrict__ block_table, const int* __restrict__ kv_lens, const int* __restrict__ front_blocks,
    int num_rows, long long row_stride, int tokens_per_block, int divisor, int addend)
{
    __shared__ int partial[THREADS];
    const int row = blockIdx.x;
    const int thread = threadIdx.x;

    int sum = 0;
    for (int before = thread; before < row; before += THREADS)
    {
        sum += count_pages(kv_lens, front_blocks, before, tokens_per_block);
    }
    partial[thread] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2)
    {
        if (thread < half)
        {
            partial[thread] += partial[thread + half];
        }
        __syncthreads();
    }
    const int first_page = partial[0];
    const int pages = count_pages(kv_lens, front_blocks, row, tokens_per_block);
    if (thread == 0)
    {
        kv_indptr[row] = first_page;
        if (row == num_rows - 1)
        {
            kv_indptr[num_rows] = first_page + pages;
        }
        kv_last_page_len[row] = pages == 0 ? 0 : (kv_lens[row] - 1) % tokens_per_block + 1;
    }
    const int* entries = block_table + row * row_stride + (front_blocks ? front_blocks[row] : 0);
    for (int i = thread; i < pages; i += THREADS)
    {
        kv_indices[first_page + i] = entries[i] / divisor + addend;
    }
}
