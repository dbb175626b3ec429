// Tensor-core instructions on arrays of tiles: d = c + a b^T, a warp (mma.sync) or warpgroup (wgmma) for each tile.
//
// a [tiles, M, 8 * steps] and b [tiles, N, 8 * steps] are 32-bit words of packed operands, K along the row: in all of
// these instructions one step of K is 32 bytes (16 halves, 8 tf32, 32 fp8). c and d [tiles, M, N] are fp32 words, or
// fp16 words for an fp16 accumulator. M x N is 16 x 8 for mma.sync and 64 x 64 for wgmma. sm_90a only.

#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>

typedef uint32_t u32;
typedef uint64_t u64;

enum { STEP_WORDS = 8, MAX_STEPS = 4, WGMMA_N = 64 };

// ---- mma.sync: lane l holds row l / 4 (and 8 below it), words l % 4 and l % 4 + 4 of a step -------------------------

#define MMA_F32(NAME, SHAPE) \
    struct NAME { \
        typedef float Accumulator; \
        static __device__ void step(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { \
            asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
        } \
    };
MMA_F32(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
MMA_F32(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_F32(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")

struct mma_f16_f16 {
    typedef uint16_t Accumulator;
    static __device__ void step(u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[2]) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                     : "+r"(d[0]), "+r"(d[1])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

// Accumulator registers of one lane: of each 8 columns, columns 2 (lane % 4) + {0, 1} of rows `row` and `row` + 8.
template <int N> __device__ void load(float (&d)[N / 2], const float *c, int row, int column) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = c[(row + 8 * (i / 2 % 2)) * N + 8 * (i / 4) + column + i % 2];
}
template <int N> __device__ void store(const float (&d)[N / 2], float *c, int row, int column) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) c[(row + 8 * (i / 2 % 2)) * N + 8 * (i / 4) + column + i % 2] = d[i];
}
template <int N> __device__ void load(u32 (&d)[N / 4], const uint16_t *c, int row, int column) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const uint16_t *at = c + (row + 8 * (i % 2)) * N + 8 * (i / 2) + column;
        d[i] = at[0] | u32(at[1]) << 16;
    }
}
template <int N> __device__ void store(const u32 (&d)[N / 4], uint16_t *c, int row, int column) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        uint16_t *at = c + (row + 8 * (i % 2)) * N + 8 * (i / 2) + column;
        at[0] = uint16_t(d[i]);
        at[1] = uint16_t(d[i] >> 16);
    }
}
template <class Accumulator, int N> struct Registers;
template <int N> struct Registers<float, N> { float d[N / 2]; };
template <int N> struct Registers<uint16_t, N> { u32 d[N / 4]; };

template <class Op>
__global__ void mma_kernel(const u32 *A, const u32 *B, const void *C, void *D, int steps, int, int, int) {
    typedef typename Op::Accumulator Accumulator;
    const int row = threadIdx.x / 4, part = threadIdx.x % 4, pitch = STEP_WORDS * steps;
    A += size_t(blockIdx.x) * 16 * pitch + row * pitch + part;
    B += size_t(blockIdx.x) * 8 * pitch + row * pitch + part;
    Registers<Accumulator, 8> acc;
    load<8>(acc.d, static_cast<const Accumulator *>(C) + size_t(blockIdx.x) * 128, row, 2 * part);
    for (int s = 0; s < steps; s++) {
        const u32 *x = A + STEP_WORDS * s, *y = B + STEP_WORDS * s;
        const u32 a[4] = {x[0], x[8 * pitch], x[4], x[8 * pitch + 4]}, b[2] = {y[0], y[4]};
        Op::step(acc.d, a, b);
    }
    store<8>(acc.d, static_cast<Accumulator *>(D) + size_t(blockIdx.x) * 128, row, 2 * part);
}

// ---- wgmma m64n64: operands in shared memory without swizzle, K contiguous -----------------------------------------
//
// A core matrix is 8 rows of 16 bytes, 128 contiguous bytes. One step of a tile: core matrix (row / 8, 16-byte chunk of
// K) at byte 256 * (row / 8) + 128 * chunk. Descriptor: address, "leading" offset between the core matrices along K,
// "stride" offset between core matrices along M or N; all in units of 16 bytes; no swizzle.

__device__ u64 descriptor(const u32 *tile, int leading, int stride) {
    const u64 address = __cvta_generic_to_shared(tile);
    return ((address & 0x3ffff) >> 4) | u64(leading >> 4) << 16 | u64(stride >> 4) << 32;
}

#define REGISTERS_F32 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define OPERANDS4(C, I) C(d[I]), C(d[I + 1]), C(d[I + 2]), C(d[I + 3])
#define OPERANDS16(C, I) OPERANDS4(C, I), OPERANDS4(C, I + 4), OPERANDS4(C, I + 8), OPERANDS4(C, I + 12)

// TRANSPOSE is ", 0" for each operand in shared memory where the instruction has that immediate (16-bit operands).
#define WGMMA_F32(NAME, SHAPE, TRANSPOSE_A, TRANSPOSE_B) \
    struct NAME { \
        typedef float Accumulator; \
        static __device__ void step(float (&d)[32], u64 a, u64 b, int keep) { \
            asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %34, 0; " \
                         "wgmma.mma_async.sync.aligned." SHAPE " " REGISTERS_F32 \
                         ", %32, %33, keep, 1, 1" TRANSPOSE_A TRANSPOSE_B "; }" \
                         : OPERANDS16("+f", 0), OPERANDS16("+f", 16) : "l"(a), "l"(b), "r"(keep)); \
        } \
        static __device__ void step(float (&d)[32], const u32 (&a)[4], u64 b, int keep) { \
            asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %37, 0; " \
                         "wgmma.mma_async.sync.aligned." SHAPE " " REGISTERS_F32 \
                         ", {%32,%33,%34,%35}, %36, keep, 1, 1" TRANSPOSE_B "; }" \
                         : OPERANDS16("+f", 0), OPERANDS16("+f", 16) \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); \
        } \
    };
WGMMA_F32(wgmma_f16, "m64n64k16.f32.f16.f16", ", 0", ", 0")
WGMMA_F32(wgmma_bf16, "m64n64k16.f32.bf16.bf16", ", 0", ", 0")
WGMMA_F32(wgmma_tf32, "m64n64k8.f32.tf32.tf32", "", "")
WGMMA_F32(wgmma_e4m3, "m64n64k32.f32.e4m3.e4m3", "", "")
WGMMA_F32(wgmma_e5m2, "m64n64k32.f32.e5m2.e5m2", "", "")

#define REGISTERS_F16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define WGMMA_F16(NAME, SHAPE, TRANSPOSE_A, TRANSPOSE_B) \
    struct NAME { \
        typedef uint16_t Accumulator; \
        static __device__ void step(u32 (&d)[16], u64 a, u64 b, int keep) { \
            asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %18, 0; " \
                         "wgmma.mma_async.sync.aligned." SHAPE " " REGISTERS_F16 \
                         ", %16, %17, keep, 1, 1" TRANSPOSE_A TRANSPOSE_B "; }" \
                         : OPERANDS16("+r", 0) : "l"(a), "l"(b), "r"(keep)); \
        } \
        static __device__ void step(u32 (&d)[16], const u32 (&a)[4], u64 b, int keep) { \
            asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %21, 0; " \
                         "wgmma.mma_async.sync.aligned." SHAPE " " REGISTERS_F16 \
                         ", {%16,%17,%18,%19}, %20, keep, 1, 1" TRANSPOSE_B "; }" \
                         : OPERANDS16("+r", 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); \
        } \
    };
WGMMA_F16(wgmma_f16_f16, "m64n64k16.f16.f16.f16", ", 0", ", 0")

// flags: 1 = the first step drops c (scale-d 0), 2 = a comes from registers
template <class Op>
__global__ void __launch_bounds__(128)
wgmma_kernel(const u32 *A, const u32 *B, const void *C, void *D, int steps, int flags, int leading, int stride) {
    typedef typename Op::Accumulator Accumulator;
    __shared__ __align__(128) u32 tile_a[MAX_STEPS][64 * STEP_WORDS], tile_b[MAX_STEPS][WGMMA_N * STEP_WORDS];
    const int pitch = STEP_WORDS * steps, row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    A += size_t(blockIdx.x) * 64 * pitch;
    B += size_t(blockIdx.x) * WGMMA_N * pitch;
    for (int i = threadIdx.x; i < 64 * pitch; i += 128) {  // WGMMA_N rows of b as well
        const int r = i / pitch, s = i % pitch / STEP_WORDS, word = i % STEP_WORDS;
        const int at = r / 8 * 64 + word / 4 * 32 + r % 8 * 4 + word % 4;
        tile_a[s][at] = A[i];
        tile_b[s][at] = B[i];
    }
    Registers<Accumulator, WGMMA_N> acc;
    load<WGMMA_N>(acc.d, static_cast<const Accumulator *>(C) + size_t(blockIdx.x) * 64 * WGMMA_N, row, 2 * part);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < steps; s++) {
        const u64 b = descriptor(tile_b[s], leading, stride);
        const int keep = s > 0 || !(flags & 1);
        if (flags & 2) {
            const u32 *x = A + row * pitch + STEP_WORDS * s + part;
            const u32 a[4] = {x[0], x[8 * pitch], x[4], x[8 * pitch + 4]};
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            Op::step(acc.d, a, b, keep);
        } else {
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            Op::step(acc.d, descriptor(tile_a[s], leading, stride), b, keep);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    store<WGMMA_N>(acc.d, static_cast<Accumulator *>(D) + size_t(blockIdx.x) * 64 * WGMMA_N, row, 2 * part);
}

// ---- host -------------------------------------------------------------------------------------------------------

struct Entry {
    const char *name;
    void (*kernel)(const u32 *, const u32 *, const void *, void *, int, int, int, int);
    int m, n, accumulator_bytes, threads;
};
#define MMA(NAME) {#NAME, mma_kernel<NAME>, 16, 8, sizeof(NAME::Accumulator), 32}
#define WGMMA(NAME) {#NAME, wgmma_kernel<NAME>, 64, WGMMA_N, sizeof(NAME::Accumulator), 128}
static const Entry entries[] = {
    MMA(mma_f16), MMA(mma_bf16), MMA(mma_tf32), MMA(mma_f16_f16),
    WGMMA(wgmma_f16), WGMMA(wgmma_bf16), WGMMA(wgmma_tf32), WGMMA(wgmma_e4m3), WGMMA(wgmma_e5m2), WGMMA(wgmma_f16_f16),
};

// Host arrays as above; leading and stride are the descriptor's offsets in bytes. Returns a cudaError_t, or -1 for a
// name that is not there.
extern "C" int run(const char *name, const u32 *a, const u32 *b, const void *c, void *d, int tiles, int steps,
                   int flags, int leading, int stride) {
    const Entry *entry = nullptr;
    for (const Entry &e : entries)
        if (!strcmp(e.name, name)) entry = &e;
    if (!entry || steps < 1 || steps > MAX_STEPS) return -1;
    const size_t row = size_t(tiles) * steps * STEP_WORDS * sizeof(u32);
    const size_t cells = size_t(tiles) * entry->m * entry->n * entry->accumulator_bytes;
    const size_t sizes[4] = {row * entry->m, row * entry->n, cells, cells};
    const void *operands[3] = {a, b, c};
    void *buffers[4] = {};
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 4 && !error; i++) error = cudaMalloc(&buffers[i], sizes[i]);
    for (int i = 0; i < 3 && !error; i++) error = cudaMemcpy(buffers[i], operands[i], sizes[i], cudaMemcpyHostToDevice);
    if (!error) {
        const u32 *rows = static_cast<u32 *>(buffers[0]), *columns = static_cast<u32 *>(buffers[1]);
        entry->kernel<<<tiles, entry->threads>>>(rows, columns, buffers[2], buffers[3], steps, flags, leading, stride);
        error = cudaGetLastError();
    }
    if (!error) error = cudaMemcpy(d, buffers[3], sizes[3], cudaMemcpyDeviceToHost);
    for (void *buffer : buffers) cudaFree(buffer);
    return error;
}

extern "C" const char *message(int error) {
    return error == -1 ? "no such entry" : cudaGetErrorString(cudaError_t(error));
}
