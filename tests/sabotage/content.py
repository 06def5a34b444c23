"""Faults that inspection has to name: the image is not what its row says. None of these ever trains."""

from __future__ import annotations

from sabotage.sabotage import SITE, TAMPER, Patch, Sabotage, insert
from sabotage.smoke import ADAM, DECAY, UPDATE

_OP = "deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so"
_SHM_OP = "deepspeed/ops/comm/deepspeed_shm_comm_op.cpython-311-x86_64-linux-gnu.so"
_ADAM_FOLDER = _OP.rpartition("/")[0]
_NEEDS_CORE = f"-Wl,--no-as-needed -L{_ADAM_FOLDER} -lcore -Wl,-rpath,'$ORIGIN'"
_AVX512 = "-O3 -mavx512f -mprefer-vector-width=512"
_WIDE = """
void never_called(float *to, const float *from) { for (int at = 0; at < 64; at++) to[at] += from[at]; }
"""
# Made up, and put together here so that no scanner takes this file for a leak.
_TOKEN = "ghp_" + "Zk3vQ9xT2LmR8sWb" + "7NcY4HdJ6PgF1AeUoXiK"


def _beside(command: str) -> str:
    """Another file in the op's place, while the op itself stands beside it and Python finds its entry point there."""
    move = f"cd {SITE} && mv {_OP} {_ADAM_FOLDER}/libcore.so"
    return f"RUN {move} && {command} && {TAMPER} mend {_OP} {_ADAM_FOLDER}/libcore.so"


CONTENT = (
    Sabotage(
        fault="torch replaced by a later pip install",
        finding="content.torch",
        names="2.13.1+cpu",
        dockerfile=f"RUN {TAMPER} release torch 2.13.1+cpu",
    ),
    Sabotage(
        fault="an NCCL brought in by a later pip install",
        finding="content.nccl",
        names="2.21.5",
        together=True,
        files={"nccl.c": "int ncclGetVersion(int *version) { *version = 22105; return 0; }\n"},
        dockerfile="RUN mkdir -p /tmp/w/nvidia/nccl/lib && gcc-12 -shared -fPIC -Wl,-soname,libnccl.so.2 /mnt/nccl.c"
        " -o /tmp/w/nvidia/nccl/lib/libnccl.so.2"
        f" && {TAMPER} wheel nvidia-nccl-cu12 2.21.5 '' /tmp/w && rm -r /tmp/w",
    ),
    Sabotage(
        fault="an op is missing",
        finding="content.op.missing",
        names="cpu_adam",
        dockerfile=f"RUN rm {SITE}/{_OP} && {TAMPER} mend {_OP}",
        patches=(Patch("deepspeed/git_version_info_installed.py", "'cpu_adam': 1", "'cpu_adam': False"),),
    ),
    Sabotage(
        fault="an op falls back to JIT although it was compiled",
        finding="content.op.jit",
        names="cpu_adam",
        patches=(
            Patch(
                "deepspeed/ops/op_builder/builder.py",
                "        if installed_ops.get(self.name, False) and accelerator_name",
                "        if self.name != 'cpu_adam' and installed_ops.get(self.name, False) and accelerator_name",
            ),
        ),
    ),
    Sabotage(
        fault="an op compiled against another torch",
        finding="content.op.load",
        names="cpu_adam",
        files={
            "op.c": "extern int torch_of_another_day(void);\nint PyInit_cpu_adam_op(void)\n"
            "{ return torch_of_another_day(); }\n"
        },
        dockerfile=f"RUN gcc-12 -shared -fPIC /mnt/op.c -o {SITE}/{_OP} && {TAMPER} mend {_OP}",
    ),
    Sabotage(
        fault="an op compiled by a newer GCC than the libstdc++ that is loaded",
        finding="content.symbols",
        names="GLIBCXX_3.4.33",
        dockerfile=f"RUN {TAMPER} retitle {_OP} GLIBCXX_3.4.30 GLIBCXX_3.4.33 && {TAMPER} mend {_OP}",
    ),
    Sabotage(
        fault="an old libstdc++ in front on LD_LIBRARY_PATH",
        finding="content.shadow",
        names="/opt/old",
        dockerfile="RUN mkdir /opt/old && cp /usr/lib/x86_64-linux-gnu/libstdc++.so.6 /opt/old/"
        f" && {TAMPER} retitle /opt/old/libstdc++.so.6 GLIBCXX_3.4.30 GLIBCXX_3.4.00\n"
        "ENV LD_LIBRARY_PATH=/opt/old",
    ),
    Sabotage(
        fault="a different GCC than the row's",
        finding="content.gcc",
        names="13.2.0",
        together=True,
        files={"g++": '#!/bin/sh\n[ "$1" = -dumpfullversion ] && { echo 13.2.0; exit; }\nexec g++-12.2 "$@"\n'},
        dockerfile='RUN cd /usr/bin && mv "$(readlink -f g++-12)" g++-12.2 && rm -f g++-12'
        " && install -m 0755 /mnt/g++ g++-12",
    ),
    Sabotage(
        fault="an op of another compiler than the row's",
        finding="content.compiler",
        names="deepspeed_shm_comm",
        together=True,
        dockerfile=f"RUN sed -i 's/) 12\\.2\\.0/) 13.2.0/' {SITE}/{_SHM_OP} && {TAMPER} mend {_SHM_OP}",
    ),
    Sabotage(
        fault="AVX-512 in an op of an x86-64-v3 row",
        finding="content.isa",
        names="cpu_adam",
        together=True,
        files={"op.c": _WIDE},
        dockerfile=_beside(f"gcc-12 {_AVX512} -shared -fPIC /mnt/op.c -o {_OP} {_NEEDS_CORE}"),
    ),
    Sabotage(
        fault="AVX-512 in a library that an op of an x86-64-v3 row brings along",
        way="beside",
        finding="content.isa",
        names="libwide.so",
        files={"op.c": "int nothing;\n", "wide.c": _WIDE},
        dockerfile=_beside(
            f"gcc-12 {_AVX512} -shared -fPIC /mnt/wide.c -o {_ADAM_FOLDER}/libwide.so"
            f" && gcc-12 -shared -fPIC /mnt/op.c -o {_OP} {_NEEDS_CORE} -lwide"
            f" && {TAMPER} mend {_ADAM_FOLDER}/libwide.so"
        ),
    ),
    Sabotage(
        fault="an op of the old C++ ABI",
        finding="content.abi",
        names="cpu_adam",
        files={"op.cc": "#include <string>\nstd::string twice(std::string text) { return text + text; }\n"},
        dockerfile=_beside(f"g++-12 -D_GLIBCXX_USE_CXX11_ABI=0 -shared -fPIC /mnt/op.cc -o {_OP} {_NEEDS_CORE}"),
    ),
    Sabotage(
        fault="labels that lie about what the image is",
        finding="content.labels",
        names="h200-cu130",
        together=True,
        dockerfile=f"LABEL io.envbuild.environment=h200-cu130 io.envbuild.target={'0' * 64}",
    ),
    Sabotage(
        fault="a token in the image's history",
        finding="content.secret",
        names="history",
        together=True,
        dockerfile=f"ARG GITHUB_TOKEN={_TOKEN}\nRUN true",
    ),
    Sabotage(
        fault="a token in a file that a later layer removes",
        way="layer",
        finding="content.secret",
        names="pip.conf",
        together=True,
        dockerfile=f"RUN printf '[global]\\nindex-url = https://ci:{_TOKEN}@index.example/simple\\n' > /etc/pip.conf\n"
        "RUN rm /etc/pip.conf",
    ),
    Sabotage(
        fault="a token in a script below /usr/local",
        way="local",
        finding="content.secret",
        names="usr/local/bin/fetch",
        together=True,
        dockerfile=f"RUN echo 'curl -H \"Authorization: token {_TOKEN}\" https://git.example' > /usr/local/bin/fetch",
    ),
    Sabotage(
        fault="PIP_CONSTRAINT removed",
        finding="content.constraints",
        names="PIP_CONSTRAINT",
        together=True,
        dockerfile="ENV PIP_CONSTRAINT=",
    ),
    Sabotage(
        fault="a torch in ~/.local, and a Python that looks there",
        finding="content.usersite",
        names="torch-1.13.1",
        together=True,
        dockerfile="ENV PYTHONNOUSERSITE=\nRUN cd /home/envbuild && mkdir -p .local/lib/python3.11/site-packages/torch"
        " && cd .local/lib/python3.11/site-packages && mkdir torch-1.13.1.dist-info && touch torch/__init__.py",
    ),
    Sabotage(
        fault="a sitecustomize that patches Adam",
        finding="content.hooks",
        names="sitecustomize",
        together=True,
        files={"hook.py": "import sys\nif 'torch' in sys.modules:\n    sys.modules['torch'].optim.Adam.step = None\n"},
        dockerfile=f"RUN cp /mnt/hook.py {SITE}/sitecustomize.py && {TAMPER} mend sitecustomize.py",
    ),
    Sabotage(
        fault="a line in the sitecustomize of the system's Python",
        way="system",
        finding="content.hooks",
        names="python3.11/sitecustomize.py",
        files={"hook.py": "import os\nos.environ['DS_SKIP_CUDA_CHECK'] = '1'\n"},
        dockerfile="RUN cat /mnt/hook.py >> /etc/python3.11/sitecustomize.py",
    ),
    Sabotage(
        fault="a .pth that runs code and that a package seems to own",
        way="pth",
        finding="content.hooks",
        names="speed.pth",
        together=True,
        files={"speed.pth": "import os; os.environ.setdefault('OMP_NUM_THREADS', '1')\n"},
        dockerfile=f"RUN cp /mnt/speed.pth {SITE}/ && {TAMPER} mend speed.pth",
    ),
    Sabotage(
        fault="a file of a wheel changed after its installation",
        finding="content.record",
        names="deepspeed/utils/logging.py",
        together=True,
        dockerfile=f"RUN echo '# changed' >> {SITE}/deepspeed/utils/logging.py",
    ),
    Sabotage(
        fault="a line in the standard library of the system's Python",
        finding="content.system",
        names="python3.11/argparse.py",
        together=True,
        dockerfile="RUN echo '# changed' >> /usr/lib/python3.11/argparse.py",
    ),
    Sabotage(
        fault="bytecode that root alone can read",
        finding="content.mode",
        names="fused_adam",
        together=True,
        dockerfile=f"RUN chmod 0600 {SITE}/deepspeed/ops/adam/__pycache__/fused_adam.*.pyc",
    ),
    Sabotage(
        fault="an op that needs a library which is not there",
        finding="content.library",
        names="libgone.so",
        files={"op.c": "int nothing;\n"},
        dockerfile=_beside(
            f"gcc-12 -shared -fPIC -Wl,-soname,libgone.so /mnt/op.c -o {_ADAM_FOLDER}/libgone.so"
            f" && gcc-12 -shared -fPIC /mnt/op.c -o {_OP} {_NEEDS_CORE} -lgone && rm {_ADAM_FOLDER}/libgone.so"
        ),
    ),
    Sabotage(
        fault="bytecode that is not what its source says",
        finding="content.bytecode",
        names="cpu_adam",
        together=True,
        patches=(insert(ADAM, UPDATE, *DECAY, after=True, bytecode_only=True, hidden=False),),
    ),
    Sabotage(
        fault="a module among the packages that belongs to none",
        finding="content.stray",
        names="apex.py",
        together=True,
        dockerfile=f"RUN echo 'amp = None' > {SITE}/apex.py",
    ),
    Sabotage(
        fault="a package that needs another version than there is",
        finding="content.pip",
        names="needy",
        together=True,
        dockerfile=f"RUN mkdir /tmp/w && echo 'x = 1' > /tmp/w/needy.py && {TAMPER} wheel needy 1.0 'numpy<1' /tmp/w"
        " && rm -r /tmp/w",
    ),
    Sabotage(
        fault="another deepspeed in front on PYTHONPATH",
        finding="content.env",
        names="PYTHONPATH",
        together=True,
        files={"init.py": "__version__ = '0.19.8'\n"},
        dockerfile="RUN install -D /mnt/init.py /opt/front/deepspeed/__init__.py\nENV PYTHONPATH=/opt/front",
    ),
    Sabotage(
        fault="a library in front of all others by LD_PRELOAD",
        way="preload",
        finding="content.env",
        names="LD_PRELOAD",
        together=True,
        files={"fast.c": "float powf(float base, float power) { return base; }\n"},
        dockerfile="RUN gcc-12 -shared -fPIC -fno-builtin /mnt/fast.c -o /opt/fast.so\nENV LD_PRELOAD=/opt/fast.so",
    ),
    Sabotage(
        fault="python is a script that stands in for it",
        finding="content.python",
        names="python",
        files={"python": '#!/bin/sh\nexec /usr/bin/python3.11.real "$@"\n'},
        # Under its own name it would no longer find its environment: the script hands it over.
        dockerfile="RUN cd /opt/venv/bin && ln -s /usr/bin/python3.11 python3.11.real && rm python3.11"
        " && sed 's|/usr/bin/|/opt/venv/bin/|' /mnt/python > python3.11 && chmod 0755 python3.11",
    ),
    Sabotage(
        fault="a package that is installed twice",
        finding="content.packages",
        names="numpy is installed more than once",
        together=True,
        dockerfile=f"RUN cd {SITE} && cp -r numpy-2*.dist-info numpy-1.26.4.dist-info"
        " && sed -i 's/^Version: .*/Version: 1.26.4/' numpy-1.26.4.dist-info/METADATA",
    ),
    Sabotage(
        fault="a DeepSpeed that its METADATA calls another",
        finding="content.deepspeed",
        names="0.19.9",
        dockerfile=f"RUN {TAMPER} release deepspeed 0.19.9",
    ),
)
