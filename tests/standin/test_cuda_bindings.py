# SPDX-License-Identifier: Apache-2.0
"""Drive the stand-in through cuda.bindings, a client that nobody here wrote.

It resolves every name through cuGetProcAddress. Kernels come from nvcc where there is one, as a fatbin
with PTX; the call log and the dumps are checked too.
"""
import ctypes
import os
import shutil
import struct
import subprocess

import pytest

import standin_log
from harness import STANDIN

np = pytest.importorskip("numpy")
cu = pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.built(STANDIN / "libcuda.so.1")

SOURCE = r"""
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void scale(float *x, int n, float a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] *= a;
}
struct row { float *p; int width; short pad[3]; };
extern "C" __global__ void row_sums(row in, float *out)
{
    __shared__ float part[128];
    float sum = 0;
    for (int i = threadIdx.x; i < in.width; i += blockDim.x)
        sum += in.p[blockIdx.x * in.width + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int n = 64; n; n /= 2) {
        if (threadIdx.x < n)
            part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    if (!threadIdx.x)
        out[blockIdx.x] = part[0];
}
extern "C" __global__ void to_bf16(const float *x, __nv_bfloat16 *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = __float2bfloat16(x[i]);
}
extern "C" __global__ void report(const float *x)
{
    printf("thread %d: %.2f %s\n", threadIdx.x, x[threadIdx.x], threadIdx.x ? "later" : "first");
}
extern "C" __global__ void reverse_twice(unsigned *x, unsigned *out)
{
    auto grid = cooperative_groups::this_grid();
    unsigned i = grid.thread_rank(), n = grid.size();
    x[i] = i;
    grid.sync();
    unsigned v = x[n - 1 - i];
    grid.sync();
    x[i] = v * 2;
    grid.sync();
    out[i] = x[n - 1 - i];
}
extern "C" __global__ void sampled(cudaTextureObject_t texture, const float2 *at, float *out)
{
    out[threadIdx.x] = tex2D<float>(texture, at[threadIdx.x].x, at[threadIdx.x].y);
}
extern "C" __global__ void fetched(cudaTextureObject_t texture, uchar4 *out)
{
    out[threadIdx.x] = tex1Dfetch<uchar4>(texture, threadIdx.x);
}
extern "C" __global__ void histogram(const unsigned char *x, int n, unsigned *bins)
{
    extern __shared__ unsigned local[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i])
            atomicAdd(&bins[i], local[i]);
}
"""


def check(result):
    """Unwrap cuda.bindings' (error, values...) tuples."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def compile_fatbin(nvcc, folder):
    (folder / "kernels.cu").write_text(SOURCE)
    subprocess.run([nvcc, "-fatbin", "--compress-mode=none", "-gencode", "arch=compute_75,code=compute_75",
                    "-gencode", "arch=compute_90,code=compute_90", "-o", folder / "kernels.fatbin", folder / "kernels.cu"],
                   check=True, env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    return (folder / "kernels.fatbin").read_bytes()


class Client:
    """A context, a module, and arrays that come and go; @log and @dump: what the stand-in writes."""

    def __init__(self, image, log, dump):
        self.log, self.dump = log, dump
        check(cu.cuInit(0))
        self.device = check(cu.cuDeviceGet(0))
        self.ctx = check(cu.cuDevicePrimaryCtxRetain(self.device))
        check(cu.cuCtxSetCurrent(self.ctx))
        self.module = check(cu.cuModuleLoadData(image))
        self.stream = check(cu.cuStreamCreate(1))

    def function(self, name):
        return check(cu.cuModuleGetFunction(self.module, name.encode()))

    def upload(self, array):
        pointer = check(cu.cuMemAlloc(array.nbytes))
        check(cu.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        return pointer

    def download(self, pointer, like):
        out = np.empty_like(like)
        check(cu.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
        return out

    def launch(self, name, grid, block, values, types, shared=0, stream=None):
        check(cu.cuLaunchKernel(self.function(name), grid, 1, 1, block, 1, 1, shared,
                                stream if stream is not None else self.stream, (values, types), 0))

    def sync(self):
        check(cu.cuStreamSynchronize(self.stream))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("bindings")
    log, dump = folder / "log.jsonl", folder / "dump.bin"
    # The stand-in reads it once, in cuInit().
    os.environ.update(DMI_STANDIN_LOG=str(log), DMI_STANDIN_DUMP_FILE=str(dump),
                      DMI_STANDIN_DUMP="before 0 all scale.*;after 0 64 scale", DMI_STANDIN_DTOH_BPS="1000000000")
    return Client(compile_fatbin(nvcc, folder), log, dump)


def test_device_is_named_for_what_it_is(client):
    assert check(cu.cuDeviceGetName(64, client.device)).startswith(b"DMI stand-in")


def test_kernels_of_nvcc_compute(client):
    x = np.arange(1000, dtype=np.float32)
    p = client.upload(x)
    client.launch("scale", 8, 128, (int(p), 1000, 0.5), (ctypes.c_void_p, ctypes.c_int, ctypes.c_float))
    client.sync()
    assert np.array_equal(client.download(p, x), x * np.float32(0.5))


def test_structs_by_value_and_shared_memory(client):
    class Row(ctypes.Structure):
        _fields_ = [("p", ctypes.c_void_p), ("width", ctypes.c_int), ("pad", ctypes.c_short * 3)]

    x = np.random.default_rng(1).integers(0, 100, (7, 500)).astype(np.float32)
    p, out = client.upload(x), client.upload(np.zeros(7, np.float32))
    row, target = Row(int(p), 500), ctypes.c_void_p(int(out))
    params = (ctypes.c_void_p * 2)(ctypes.addressof(row), ctypes.addressof(target))
    check(cu.cuLaunchKernel(client.function("row_sums"), 7, 1, 1, 128, 1, 1, 0, client.stream,
                            ctypes.addressof(params), 0))
    client.sync()
    assert np.array_equal(client.download(out, np.zeros(7, np.float32)), x.sum(1))


def test_bfloat16_rounds_to_nearest_even(client):
    x = np.random.default_rng(2).standard_normal(4096).astype(np.float32)
    p, q = client.upload(x), client.upload(np.zeros(4096, np.uint16))
    client.launch("to_bf16", 32, 128, (int(p), int(q), 4096), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))
    client.sync()
    bits = x.view(np.uint32)
    want = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    assert np.array_equal(client.download(q, want), want)


def test_atomics_and_dynamic_shared_memory(client):
    x = np.random.default_rng(3).integers(0, 256, 20000).astype(np.uint8)
    p, bins = client.upload(x), client.upload(np.zeros(256, np.uint32))
    client.launch("histogram", 9, 96, (int(p), 20000, int(bins)), (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
                  shared=1024)
    client.sync()
    assert np.array_equal(client.download(bins, np.zeros(256, np.uint32)), np.bincount(x, minlength=256))


def test_kernels_print_to_stdout(client, capfd):
    p = client.upload(np.array([1.5, -2.25], np.float32))
    client.launch("report", 1, 2, (int(p),), (ctypes.c_void_p,))
    client.sync()
    assert capfd.readouterr().out == "thread 0: 1.50 first\nthread 1: -2.25 later\n"


def test_cooperative_groups_synchronise_the_grid(client):
    x = np.zeros(16 * 64, np.uint32)
    p, out = client.upload(x), client.upload(x)
    check(cu.cuLaunchCooperativeKernel(client.function("reverse_twice"), 16, 1, 1, 64, 1, 1, 0, client.stream,
                                       ((int(p), int(out)), (ctypes.c_void_p, ctypes.c_void_p))))
    client.sync()
    assert np.array_equal(client.download(out, x), np.arange(x.size, dtype=np.uint32) * 2)


def test_kernels_read_through_textures_of_arrays(client):
    desc = cu.CUDA_ARRAY_DESCRIPTOR()
    desc.Width, desc.Height, desc.NumChannels, desc.Format = 16, 8, 1, cu.CUarray_format.CU_AD_FORMAT_FLOAT
    array = check(cu.cuArrayCreate(desc))
    x = np.random.default_rng(4).standard_normal((8, 16)).astype(np.float32)
    copy = cu.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.srcHost, copy.srcPitch = cu.CUmemorytype.CU_MEMORYTYPE_HOST, x.ctypes.data, 64
    copy.dstMemoryType, copy.dstArray, copy.WidthInBytes, copy.Height = cu.CUmemorytype.CU_MEMORYTYPE_ARRAY, array, 64, 8
    check(cu.cuMemcpy2D(copy))
    resource, sampling = cu.CUDA_RESOURCE_DESC(), cu.CUDA_TEXTURE_DESC()
    resource.resType, resource.res.array.hArray = cu.CUresourcetype.CU_RESOURCE_TYPE_ARRAY, array
    sampling.filterMode = cu.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR
    sampling.addressMode = [cu.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP] * 3
    texture = check(cu.cuTexObjectCreate(resource, sampling, None))
    at = np.array([(2.5, 3.5), (4.0, 3.5), (7.0, 5.0), (-3, 0.5), (99, 99)], np.float32)
    p, out = client.upload(at), client.upload(np.zeros(5, np.float32))
    client.launch("sampled", 1, 5, (int(texture), int(p), int(out)), (ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_void_p))
    client.sync()
    want = [x[3, 2], x[3, 3:5].mean(), x[4:6, 6:8].mean(), x[0, 0], x[7, 15]]
    assert np.allclose(client.download(out, np.zeros(5, np.float32)), want, atol=1e-6)
    check(cu.cuTexObjectDestroy(texture))
    check(cu.cuArrayDestroy(array))


def test_kernels_fetch_from_linear_memory(client):
    x = np.arange(64, dtype=np.uint8)
    p, out = client.upload(x), client.upload(np.full(80, 7, np.uint8))
    resource, sampling = cu.CUDA_RESOURCE_DESC(), cu.CUDA_TEXTURE_DESC()
    resource.resType, linear = cu.CUresourcetype.CU_RESOURCE_TYPE_LINEAR, resource.res.linear
    linear.devPtr, linear.sizeInBytes, linear.numChannels = p, 64, 4
    linear.format = cu.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    sampling.flags = 1  # as integers
    texture = check(cu.cuTexObjectCreate(resource, sampling, None))
    client.launch("fetched", 1, 20, (int(texture), int(out)), (ctypes.c_ulonglong, ctypes.c_void_p))
    client.sync()
    assert np.array_equal(client.download(out, np.zeros(80, np.uint8)), np.append(x, np.zeros(16, np.uint8)))


def test_capture_and_replay(client):
    x = np.ones(256, np.float32)
    p = client.upload(x)
    check(cu.cuStreamBeginCapture(client.stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(3):
        client.launch("scale", 2, 128, (int(p), 256, 2.0), (ctypes.c_void_p, ctypes.c_int, ctypes.c_float))
    graph = check(cu.cuStreamEndCapture(client.stream))
    nodes, count = check(cu.cuGraphGetNodes(graph, 8))
    assert count == 3
    graph_exec = check(cu.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        check(cu.cuGraphLaunch(graph_exec, client.stream))
    client.sync()
    assert np.array_equal(client.download(p, x), x * 64)


def test_the_log_has_every_launch_with_its_parameters(client):
    before = len(standin_log.Log(client.log).launches)
    x = np.ones(32, np.float32)
    p = client.upload(x)
    client.launch("scale", 1, 32, (int(p), 32, 3.0), (ctypes.c_void_p, ctypes.c_int, ctypes.c_float))
    client.sync()
    log = standin_log.Log(client.log)
    launch = log.launches[before]
    assert launch["kernel"] == "scale" and launch["grid"] == [1, 1, 1] and launch["block"] == [32, 1, 1]
    assert launch["params"] == struct.pack("<Qif", int(p), 32, 3.0)
    assert standin_log.launch_pointer(launch, 0) == int(p) and standin_log.launch_int(launch, 8) == 32
    assert log.count("cuLaunchKernel") >= 1 and not log.not_implemented()


def test_dumps_hold_what_the_buffer_held_at_that_launch(client):
    x = np.arange(64, dtype=np.float32)
    p = client.upload(x)
    for factor in (2.0, 5.0):
        client.launch("scale", 1, 64, (int(p), 64, factor), (ctypes.c_void_p, ctypes.c_int, ctypes.c_float))
    client.sync()
    first, second = standin_log.Log(client.log).launches[-2:]
    dumps = {(d.seq, d.after): d for d in standin_log.read_dumps(client.dump)}
    assert dumps[first["seq"], False].data == x.tobytes()
    assert dumps[first["seq"], True].data == (x * 2).tobytes()[:64]
    assert dumps[second["seq"], False].data == (x * 2).tobytes()
    assert dumps[second["seq"], True].data == (x * 10).tobytes()[:64]
