// A CUDA kernel on the host: each thread of a block is a thread, and blocks follow one another.
// g++ is told its file, NAME, PARAMETERS and their names, ARGUMENTS (test_cupy_kernels.py).
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
using std::exp; using std::log; using std::sqrt; using std::tanh;
template <class T> T max(T a, T b) { return std::fmax(a, b); }  // as in CUDA: not NaN
template <class T> T min(T a, T b) { return std::fmin(a, b); }
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
struct Three { unsigned x, y, z; };
static Three blockDim, gridDim;
static thread_local Three threadIdx, blockIdx;
static std::unique_ptr<std::barrier<>> everyone;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static double exchanged[1024];
static unsigned place() { return threadIdx.x + blockDim.x * threadIdx.y; }
static void __syncthreads() { everyone->arrive_and_wait(); }
template <class V> V __shfl_xor_sync(unsigned, V value, int step) {
    auto& warp = *warps[place() / 32];
    std::memcpy(&exchanged[place()], &value, sizeof(V));
    warp.arrive_and_wait();
    V other;
    std::memcpy(&other, &exchanged[place() ^ step], sizeof(V));
    warp.arrive_and_wait();
    return other;
}
static unsigned __float_as_uint(float v) { unsigned u; std::memcpy(&u, &v, 4); return u; }
static float __uint_as_float(unsigned u) { float v; std::memcpy(&v, &u, 4); return v; }
#include KERNEL
extern "C" void launch(const unsigned* sizes, PARAMETERS) {
    gridDim = {sizes[0], sizes[1], 1};
    blockDim = {sizes[2], sizes[3], 1};
    const unsigned size = blockDim.x * blockDim.y;
    for (unsigned b = 0; b < gridDim.x * gridDim.y; ++b) {
        everyone = std::make_unique<std::barrier<>>(size);
        warps.clear();
        for (unsigned w = 0; w < size / 32; ++w)
            warps.push_back(std::make_unique<std::barrier<>>(32));
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < size; ++t) threads.emplace_back([=] {
            blockIdx = {b % gridDim.x, b / gridDim.x, 0};
            threadIdx = {t % blockDim.x, t / blockDim.x, 0};
            NAME(ARGUMENTS);
            warps[t / 32]->arrive_and_drop();
            everyone->arrive_and_drop();
        });
        for (auto& thread : threads) thread.join();
    }
}
