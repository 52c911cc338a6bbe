"""The kernels under AddressSanitizer, for awkward shapes: they touch no memory that is not theirs."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from fedpac.native import build

COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = {16: [], 32: build.VARIANTS["_avx2"], 64: build.VARIANTS["_avx512"]}
ROUNDED = "divide_up(count * index_t(sizeof(T)) + 1, 64) * 64"
PROGRAM = r"""
#include <initializer_list>
#include <stdio.h>
#define ENTRY(name) kernel_##name
#include "conv_pool.h"

static unsigned seed = 1;
static float* filled(index_t count) {
    float* data = static_cast<float*>(malloc(count * sizeof(float)));
    for (index_t i = 0; i < count; ++i) data[i] = float(seed = seed * 1664525u + 1013904223u) / 4e9f - 0.5f;
    return data;
}

int main() {
    long cases = 0;
    for (index_t k : {3, 5}) for (index_t padding : {0, 1, 2}) for (index_t in = 1; in <= 17; ++in)
    for (index_t out : {3, 16, 17}) for (index_t h : {6, 9}) for (index_t w = 6; w <= 15; ++w) {
        const ConvPoolShape shape{2, in, h, w, out, k, padding};
        const Geometry s(shape);
        const index_t windows = s.windows() * out;
        float *x = filled(2 * in * h * w), *weight = filled(out * in * k * k), *bias = filled(out);
        float *y = filled(2 * windows), *grad = filled(2 * windows);
        float *dx = filled(2 * in * h * w), *dw = filled(out * in * k * k), *db = filled(out);
        uint8_t* code = static_cast<uint8_t*>(malloc(2 * windows));
        const index_t stride[4] = {in * h * w, h * w, w, 1};
        const index_t channels_last[4] = {windows, 1, s.pooled_width * out, out};
        if (kernel_forward_f32(&shape, x, stride, weight, bias, 0.01, y, code)) return 1;
        if (kernel_backward_f32(&shape, x, stride, weight, grad, channels_last, code, 0.01, dx, dw, db)) return 1;
        for (void* data : {(void*)x, (void*)weight, (void*)bias, (void*)y, (void*)grad, (void*)dx, (void*)dw,
                           (void*)db, (void*)code}) free(data);
        ++cases;
    }
    printf("%ld cases\n", cases);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("width", FLAGS)
def test_no_memory_is_touched_that_is_not_theirs(tmp_path: Path, width: int) -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if width > 16 and (platform.machine() != "x86_64" or {32: " avx2 ", 64: " avx512bw "}[width] not in flags):
        pytest.skip("this processor does not have it")
    for file in build.FOLDER.glob("*.h"):
        shutil.copy(file, tmp_path)
    header = (tmp_path / "conv_pool.h").read_text()
    assert ROUNDED in header
    exact = header.replace(ROUNDED, "count * index_t(sizeof(T)) + 1")  # rounding up would hide an overrun
    exact = exact.replace(
        "aligned_alloc(64, bytes)", "[bytes] { void* p; return posix_memalign(&p, 64, bytes) ? 0 : p; }()"
    )
    (tmp_path / "conv_pool.h").write_text(exact)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    command = [str(COMPILER), *build.FLAGS[1:], "-O1", *FLAGS[width], f"-DVECTOR_BYTES={width}", "-fsanitize=address",
               "program.cpp", "-o", "program"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[:3000]
    assert ran.stdout == "6120 cases\n"
