// The words of CUDA that the kernels use, for a host C++ compiler. CTAs run one after another. The threads of a CTA
// run one after another too, unless the kernel has barriers (HOST_BARRIERS): then each is a coroutine that hands over
// at every __syncthreads(). Shared memory is static, so a CTA finds what the one before left there.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#ifdef HOST_BARRIERS
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y, z; };

static dim3 threadIdx, blockIdx, blockDim, gridDim;

#ifdef HOST_BARRIERS
static ucontext_t host_scheduler;
static std::vector<ucontext_t> host_threads;
static std::vector<int> host_barriers_passed;
static void (*host_body)(void*);
static void* host_args;

static void __syncthreads()
{
    const unsigned self = threadIdx.x;
    ++host_barriers_passed[self];
    swapcontext(&host_threads[self], &host_scheduler);
}

static void host_thread_main()
{
    host_body(host_args);
    host_barriers_passed[threadIdx.x] = -1;  // finished
}

// Resumes every thread once per round; all must stand at the same barrier, or all have finished.
static void host_run_cta(void (*body)(void*), void* args)
{
    static const size_t stack_bytes = 64 << 10;
    std::vector<char> stacks(stack_bytes * blockDim.x);
    host_threads.assign(blockDim.x, ucontext_t{});
    host_barriers_passed.assign(blockDim.x, 0);
    host_body = body;
    host_args = args;
    for (unsigned t = 0; t < blockDim.x; ++t)
    {
        getcontext(&host_threads[t]);
        host_threads[t].uc_stack.ss_sp = stacks.data() + t * stack_bytes;
        host_threads[t].uc_stack.ss_size = stack_bytes;
        host_threads[t].uc_link = &host_scheduler;
        makecontext(&host_threads[t], host_thread_main, 0);
    }
    do
    {
        for (unsigned t = 0; t < blockDim.x; ++t)
        {
            threadIdx = {t, 0, 0};
            swapcontext(&host_scheduler, &host_threads[t]);
        }
        for (unsigned t = 1; t < blockDim.x; ++t)
        {
            if (host_barriers_passed[t] != host_barriers_passed[0])
            {
                fprintf(stderr, "threads 0 and %u of a CTA stand at different barriers\n", t);
                abort();
            }
        }
    } while (host_barriers_passed[0] != -1);
}
#else
static void host_run_cta(void (*body)(void*), void* args)
{
    for (unsigned t = 0; t < blockDim.x; ++t)
    {
        threadIdx = {t, 0, 0};
        body(args);
    }
}
#endif

template <typename Body>
static void host_run_grid(dim3 grid, unsigned threads, Body body)
{
    gridDim = grid;
    blockDim = {threads, 1, 1};
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x)
            {
                blockIdx = {x, y, z};
                host_run_cta([](void* b) { (*static_cast<Body*>(b))(); }, &body);
            }
}
