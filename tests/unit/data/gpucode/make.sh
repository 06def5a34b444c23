#!/bin/sh
# Makes the fixtures of this folder, on demand: nvcc 13.0 and cuobjdump 13.5 on PATH, both also as wheels
# (nvidia-cuda-nvcc, nvidia-cuda-cuobjdump). No GPU is needed. The .txt files are what cuobjdump says.
set -eu
cd "$(dirname "$0")"
one="-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100,code=sm_100
     -gencode arch=compute_90,code=compute_90"
two="-gencode arch=compute_100f,code=[sm_100f,compute_100f] -gencode arch=compute_103a,code=[sm_103a,compute_103a]
     -gencode arch=compute_86,code=sm_86"
# shellcheck disable=SC2086 # the options are words
for made in "compressed --compress-mode=size $one" "plain --compress-mode=none -gencode arch=compute_80,code=sm_80" \
    "relocatable -rdc=true $one"; do
    set -- $made
    name=$1 && shift
    nvcc -shared -Xcompiler -fPIC --cudart none "$@" -o "$name.so" twice.cu
done
# Two source files, compiled for different architectures: two containers in one library.
# shellcheck disable=SC2086
nvcc -c -Xcompiler -fPIC --compress-mode=size $one -o one.o twice.cu
# shellcheck disable=SC2086
nvcc -c -Xcompiler -fPIC --compress-mode=size -Dtwice=thrice $two -o two.o twice.cu
nvcc -shared --cudart none -o containers.so one.o two.o
rm one.o two.o
strip --strip-all ./*.so
for library in *.so; do
    cuobjdump -lelf -lptx "$library" >"${library%.so}.txt"
done
