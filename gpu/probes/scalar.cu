// Scalar instructions and plain CUDA C expressions on arrays of words: out[i] = op(a[i], b[i], c[i]).
//
// Compiled twice, with and without -use_fast_math. An entry is a name and an expression in the words a, b and c; `run`
// finds it by name. Half-precision entries treat a word as two values, the first in the low half.

#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef uint32_t u32;

__device__ __forceinline__ float f(u32 word) { return __uint_as_float(word); }
__device__ __forceinline__ u32 w(float value) { return __float_as_uint(value); }
__device__ __forceinline__ __half2 h(u32 word) { return *reinterpret_cast<__half2 *>(&word); }
__device__ __forceinline__ u32 w(__half2 value) { return *reinterpret_cast<u32 *>(&value); }
__device__ __forceinline__ __nv_bfloat162 bf(u32 word) { return *reinterpret_cast<__nv_bfloat162 *>(&word); }
__device__ __forceinline__ u32 w(__nv_bfloat162 value) { return *reinterpret_cast<u32 *>(&value); }

// One PTX instruction with one, two or three fp32 operands.
#define PTX1(INSTRUCTION) \
    [](u32 a) { u32 d; asm("{ .reg .f32 x, d; mov.b32 x, %1; " INSTRUCTION " d, x; mov.b32 %0, d; }" \
                           : "=r"(d) : "r"(a)); return d; }(a)
#define PTX2(INSTRUCTION) \
    [](u32 a, u32 b) { u32 d; asm("{ .reg .f32 x, y, d; mov.b32 x, %1; mov.b32 y, %2; " INSTRUCTION " d, x, y; " \
                                  "mov.b32 %0, d; }" : "=r"(d) : "r"(a), "r"(b)); return d; }(a, b)
#define PTX3(INSTRUCTION) \
    [](u32 a, u32 b, u32 c) { u32 d; asm("{ .reg .f32 x, y, z, d; mov.b32 x, %1; mov.b32 y, %2; mov.b32 z, %3; " \
                                         INSTRUCTION " d, x, y, z; mov.b32 %0, d; }" \
                                         : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }(a, b, c)
// Conversions: the low bits of the operand's word, the result in the low bits of its own.
#define NARROW16(INSTRUCTION) \
    [](u32 a) { uint16_t d; asm("{ .reg .f32 x; mov.b32 x, %1; " INSTRUCTION " %0, x; }" : "=h"(d) : "r"(a)); \
                return u32(d); }(a)
#define NARROW_PAIR16(INSTRUCTION) /* the same value twice */ \
    [](u32 a) { u32 d; asm("{ .reg .f32 x; mov.b32 x, %1; " INSTRUCTION " %0, x, x; }" : "=r"(d) : "r"(a)); \
                return d; }(a)
#define NARROW_PAIR8(INSTRUCTION) \
    [](u32 a) { uint16_t d; asm("{ .reg .f32 x; mov.b32 x, %1; " INSTRUCTION " %0, x, x; }" : "=h"(d) : "r"(a)); \
                return u32(d); }(a)
#define HALF_TO_PAIR8(INSTRUCTION) \
    [](u32 a) { uint16_t d; u32 pair = (a & 0xffff) * 0x10001u; asm(INSTRUCTION " %0, %1;" : "=h"(d) : "r"(pair)); \
                return u32(d); }(a)
#define WIDEN16(INSTRUCTION) \
    [](u32 a) { float d; asm(INSTRUCTION " %0, %1;" : "=f"(d) : "h"(uint16_t(a))); return w(d); }(a)
#define PAIR8_TO_HALF(INSTRUCTION) \
    [](u32 a) { u32 d; asm(INSTRUCTION " %0, %1;" : "=r"(d) : "h"(uint16_t((a & 0xff) * 0x101u))); \
                return d & 0xffff; }(a)

#define ENTRIES(ENTRY) \
    ENTRY(ex2_ftz, PTX1("ex2.approx.ftz.f32")) \
    ENTRY(rcp_ftz, PTX1("rcp.approx.ftz.f32")) \
    ENTRY(rsqrt_ftz, PTX1("rsqrt.approx.ftz.f32")) \
    ENTRY(sqrt_ftz, PTX1("sqrt.approx.ftz.f32")) \
    ENTRY(lg2_ftz, PTX1("lg2.approx.ftz.f32")) \
    ENTRY(rsqrt, PTX1("rsqrt.approx.f32")) \
    ENTRY(sqrt, PTX1("sqrt.approx.f32")) \
    ENTRY(lg2, PTX1("lg2.approx.f32")) \
    ENTRY(tanh, PTX1("tanh.approx.f32")) \
    ENTRY(add, PTX2("add.rn.f32")) \
    ENTRY(add_ftz, PTX2("add.rn.ftz.f32")) \
    ENTRY(sub, PTX2("sub.rn.f32")) \
    ENTRY(sub_ftz, PTX2("sub.rn.ftz.f32")) \
    ENTRY(mul, PTX2("mul.rn.f32")) \
    ENTRY(mul_ftz, PTX2("mul.rn.ftz.f32")) \
    ENTRY(fma, PTX3("fma.rn.f32")) \
    ENTRY(fma_ftz, PTX3("fma.rn.ftz.f32")) \
    ENTRY(max, PTX2("max.f32")) \
    ENTRY(max_ftz, PTX2("max.ftz.f32")) \
    ENTRY(min, PTX2("min.f32")) \
    ENTRY(min_ftz, PTX2("min.ftz.f32")) \
    ENTRY(div_rn, PTX2("div.rn.f32")) \
    ENTRY(sqrt_rn, PTX1("sqrt.rn.f32")) \
    ENTRY(div_approx_ftz, PTX2("div.approx.ftz.f32")) \
    ENTRY(div_full_ftz, PTX2("div.full.ftz.f32")) \
    ENTRY(c_add, w(f(a) + f(b))) \
    ENTRY(c_sub, w(f(a) - f(b))) \
    ENTRY(c_mul, w(f(a) * f(b))) \
    ENTRY(c_mul_add, w(f(a) * f(b) + f(c))) \
    ENTRY(c_mul_sub, w(f(a) * f(b) - f(c))) \
    ENTRY(c_sub_mul, w(f(c) - f(a) * f(b))) \
    ENTRY(c_scaled_difference, w(f(a) * f(c) - f(b) * f(c))) \
    ENTRY(c_div, w(f(a) / f(b))) \
    ENTRY(c_fdividef, w(__fdividef(f(a), f(b)))) \
    ENTRY(c_reciprocal, w(1.0f / f(a))) \
    ENTRY(c_exp2f, w(exp2f(f(a)))) \
    ENTRY(c_expf, w(expf(f(a)))) \
    ENTRY(c_sqrtf, w(sqrtf(f(a)))) \
    ENTRY(c_rsqrtf, w(rsqrtf(f(a)))) \
    ENTRY(c_log2f, w(log2f(f(a)))) \
    ENTRY(c_logf, w(logf(f(a)))) \
    ENTRY(c_log10f, w(log10f(f(a)))) \
    ENTRY(c_fmaxf, w(fmaxf(f(a), f(b)))) \
    ENTRY(c_fminf, w(fminf(f(a), f(b)))) \
    ENTRY(c_fma, w(fmaf(f(a), f(b), f(c)))) \
    ENTRY(f16_add, w(__hadd2(h(a), h(b)))) \
    ENTRY(f16_sub, w(__hsub2(h(a), h(b)))) \
    ENTRY(f16_mul, w(__hmul2(h(a), h(b)))) \
    ENTRY(f16_fma, w(__hfma2(h(a), h(b), h(c)))) \
    ENTRY(f16_max, w(__hmax2(h(a), h(b)))) \
    ENTRY(f16_min, w(__hmin2(h(a), h(b)))) \
    ENTRY(bf16_add, w(__hadd2(bf(a), bf(b)))) \
    ENTRY(bf16_sub, w(__hsub2(bf(a), bf(b)))) \
    ENTRY(bf16_mul, w(__hmul2(bf(a), bf(b)))) \
    ENTRY(bf16_fma, w(__hfma2(bf(a), bf(b), bf(c)))) \
    ENTRY(bf16_max, w(__hmax2(bf(a), bf(b)))) \
    ENTRY(bf16_min, w(__hmin2(bf(a), bf(b)))) \
    ENTRY(f32_to_f16, NARROW16("cvt.rn.f16.f32")) \
    ENTRY(f32_to_bf16, NARROW16("cvt.rn.bf16.f32")) \
    ENTRY(f32_to_f16x2, NARROW_PAIR16("cvt.rn.f16x2.f32")) \
    ENTRY(f32_to_bf16x2, NARROW_PAIR16("cvt.rn.bf16x2.f32")) \
    ENTRY(f32_to_e4m3x2, NARROW_PAIR8("cvt.rn.satfinite.e4m3x2.f32")) \
    ENTRY(f32_to_e5m2x2, NARROW_PAIR8("cvt.rn.satfinite.e5m2x2.f32")) \
    ENTRY(f16_to_e4m3x2, HALF_TO_PAIR8("cvt.rn.satfinite.e4m3x2.f16x2")) \
    ENTRY(f16_to_e5m2x2, HALF_TO_PAIR8("cvt.rn.satfinite.e5m2x2.f16x2")) \
    ENTRY(f16_to_f32, WIDEN16("cvt.f32.f16")) \
    ENTRY(bf16_to_f32, WIDEN16("cvt.f32.bf16")) \
    ENTRY(c_bfloat162float, w(__bfloat162float(__low2bfloat16(bf(a))))) \
    ENTRY(c_half2float, w(__half2float(__low2half(h(a))))) \
    ENTRY(e4m3_to_f16, PAIR8_TO_HALF("cvt.rn.f16x2.e4m3x2")) \
    ENTRY(e5m2_to_f16, PAIR8_TO_HALF("cvt.rn.f16x2.e5m2x2"))

#define KERNEL(NAME, EXPRESSION) \
    __device__ u32 NAME##_word(u32 a, u32 b, u32 c) { return EXPRESSION; } \
    __global__ void NAME##_kernel(const u32 *a, const u32 *b, const u32 *c, u32 *out, size_t count) { \
        for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) \
            out[i] = NAME##_word(a[i], b[i], c[i]); \
    }
ENTRIES(KERNEL)

struct Entry {
    const char *name;
    void (*kernel)(const u32 *, const u32 *, const u32 *, u32 *, size_t);
};
#define ROW(NAME, EXPRESSION) {#NAME, NAME##_kernel},
static const Entry entries[] = {ENTRIES(ROW)};

__global__ void count_up(u32 *out, u32 first, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        out[i] = first + u32(i);
}

static u32 *buffers[4];
static size_t capacity;

static cudaError_t reserve(size_t count) {
    if (count <= capacity) return cudaSuccess;
    for (u32 *&buffer : buffers) {
        cudaFree(buffer);
        buffer = nullptr;
        capacity = 0;
        if (cudaError_t error = cudaMalloc(&buffer, count * sizeof(u32))) return error;
    }
    capacity = count;
    return cudaSuccess;
}

static int finish(void (*kernel)(const u32 *, const u32 *, const u32 *, u32 *, size_t), u32 *out, size_t count) {
    kernel<<<1024, 256>>>(buffers[0], buffers[1], buffers[2], buffers[3], count);
    if (cudaError_t error = cudaGetLastError()) return error;
    return cudaMemcpy(out, buffers[3], count * sizeof(u32), cudaMemcpyDeviceToHost);
}

static const Entry *find(const char *name) {
    for (const Entry &entry : entries)
        if (!strcmp(entry.name, name)) return &entry;
    return nullptr;
}

// Host arrays of `count` words; an operand that the entry does not use may be null. Returns a cudaError_t, or -1 for a
// name that is not there.
extern "C" int run(const char *name, const u32 *a, const u32 *b, const u32 *c, u32 *out, size_t count) {
    const Entry *entry = find(name);
    if (!entry) return -1;
    if (cudaError_t error = reserve(count)) return error;
    const u32 *operands[3] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (operands[i])
            if (cudaError_t error = cudaMemcpy(buffers[i], operands[i], count * sizeof(u32), cudaMemcpyHostToDevice))
                return error;
    return finish(entry->kernel, out, count);
}

// The same for a = first, first + 1, ..., made on the device.
extern "C" int run_range(const char *name, u32 first, u32 *out, size_t count) {
    const Entry *entry = find(name);
    if (!entry) return -1;
    if (cudaError_t error = reserve(count)) return error;
    count_up<<<1024, 256>>>(buffers[0], first, count);
    return finish(entry->kernel, out, count);
}

extern "C" const char *message(int error) {
    return error == -1 ? "no such entry" : cudaGetErrorString(cudaError_t(error));
}
