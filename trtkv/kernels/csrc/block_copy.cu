// Copies blocks, or their first tokens, between slots of one pool or of two pools of equal block layout.
//
// Layout  A block is num_pieces pieces (one per layer and K/V). A piece is rows_per_piece rows of row_bytes bytes:
//         one row per head when heads come before tokens (HND), a single row when tokens come first (NHD).
//         The first n tokens of a piece are the first n * token_bytes bytes of each of its rows.
//         Piece p of slot s starts s * slot_stride + p * piece_stride bytes behind the pool's start.
//         jobs [num_jobs] int4 {source slot, destination slot, tokens, unused}.
// Grid    x: rows of a block (num_pieces * rows_per_piece), y: jobs. The threads of one CTA copy one row,
//         16 bytes at a time; thread i takes every blockDim.x-th unit.
//
// Jobs of one launch run in no order: no slot may be written by two of them, or written by one and read by another.

// Copies n bytes whose two ends are equally far from the alignment of Unit: single bytes up to the first aligned
// address, whole units, single bytes behind the last one.
template <typename Unit>
__device__ __forceinline__ void copy_units(unsigned char* __restrict__ dst, const unsigned char* __restrict__ src,
    long long n)
{
    const long long unit = sizeof(Unit);
    const long long to_aligned = (unit - (long long) ((unsigned long long) dst % unit)) % unit;
    const long long head = to_aligned < n ? to_aligned : n;
    const long long num_units = (n - head) / unit;
    const long long tail = head + num_units * unit;

    for (long long i = threadIdx.x; i < head; i += blockDim.x)
    {
        dst[i] = src[i];
    }
    const Unit* __restrict__ src_units = reinterpret_cast<const Unit*>(src + head);
    Unit* __restrict__ dst_units = reinterpret_cast<Unit*>(dst + head);
#pragma unroll 4
    for (long long i = threadIdx.x; i < num_units; i += blockDim.x)
    {
        dst_units[i] = src_units[i];
    }
    for (long long i = tail + threadIdx.x; i < n; i += blockDim.x)
    {
        dst[i] = src[i];
    }
}

extern "C" __global__ void __launch_bounds__(256) copy_blocks(
    unsigned char* __restrict__ dst, const unsigned char* __restrict__ src, const int4* __restrict__ jobs,
    int rows_per_piece, long long token_bytes, long long row_bytes, long long dst_slot_stride,
    long long dst_piece_stride, long long src_slot_stride, long long src_piece_stride)
{
    const int4 job = jobs[blockIdx.y];
    const long long piece = blockIdx.x / rows_per_piece;
    const long long row = blockIdx.x % rows_per_piece;
    const unsigned char* src_row = src + job.x * src_slot_stride + piece * src_piece_stride + row * row_bytes;
    unsigned char* dst_row = dst + job.y * dst_slot_stride + piece * dst_piece_stride + row * row_bytes;
    const long long n = job.z * token_bytes;

    const unsigned long long skew = (unsigned long long) src_row ^ (unsigned long long) dst_row;
    if (skew % sizeof(uint4) == 0)
    {
        copy_units<uint4>(dst_row, src_row, n);
    }
    else if (skew % sizeof(unsigned int) == 0)
    {
        copy_units<unsigned int>(dst_row, src_row, n);
    }
    else
    {
        copy_units<unsigned char>(dst_row, src_row, n);
    }
}
