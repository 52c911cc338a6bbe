// The best instruction set this processor and its operating system offer; the names are the suffixes of the kernels.
extern "C" const char* fedpac_instruction_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return "avx512";
    if (avx2) return "avx2";
#endif
    return "plain";
}
