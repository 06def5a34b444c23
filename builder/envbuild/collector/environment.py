"""The environment variables that decide how Python, compilers, the loader, CUDA and NCCL behave."""

import re

# What is not named here is not collected: an environment holds more secrets than any list of secrets knows.
_PREFIXES = (
    "LD_", "PYTHON", "CONDA", "_CE_", "MAMBA_", "CUDA", "CUDNN", "CUBLAS", "NVIDIA_", "NVTE_", "NV_", "NCCL", "TORCH",
    "PYTORCH", "DS_", "DEEPSPEED", "OMP_", "KMP_", "MKL_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "UCX_", "FI_", "RDMAV_",
    "IBV_", "MLX5_", "GLOO_", "TP_", "TRITON_", "ACCELERATE_", "MALLOC_", "GLIBC_TUNABLES", "NUMA_", "APPTAINER",
    "SINGULARITY", "CMAKE_", "CCACHE_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "OMPI_MCA_", "PMIX_", "MV2_",
    "SLURM_CPU", "SLURM_GPU", "SLURM_MEM", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_PROCID",
    "SLURM_LOCALID", "PIP_",
    "UV_", "NVCC_", "GCC_", "MASTER_", "X_SCLS", "PYENV_", "ENVBUILD_",
)  # fmt: skip
_NAMES = {
    "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "VIRTUAL_ENV", "MAX_JOBS", "MAKEFLAGS", "NINJAFLAGS", "NINJA_STATUS",
    "CC", "CXX", "CPP", "NVCC", "LDSHARED", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "INCLUDE", "PKG_CONFIG_PATH", "COMPILER_PATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE",
    "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "CROSS_RANK", "CROSS_SIZE", "MODULEPATH", "LOADEDMODULES",
    "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "DEBUG", "CI", "container", "SHELL", "BASH_ENV", "http_proxy", "https_proxy",
    "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE", "TZ", "ROCM_HOME", "ROCM_PATH", "HIP_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST",
}  # fmt: skip
_FLAGS = re.compile(r"(?:[A-Z]+_)*[A-Z]*FLAGS\Z")
_VALUE_CHARS = 32 * 1024
_COUNT = 2000


def environment(environ):
    """The variables of interest, each cut to a bounded length; secrets in them are masked later, with the rest."""
    found = {}
    for name in sorted(environ):
        if (name in _NAMES or name.startswith(_PREFIXES) or _FLAGS.match(name)) and len(name) < 200:
            value = environ[name]
            if len(value) > _VALUE_CHARS:
                value = "{}... ({} characters)".format(value[:_VALUE_CHARS], len(value))
            found[name] = value
            if len(found) == _COUNT:
                break
    return found
