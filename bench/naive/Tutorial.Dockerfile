# The image that ours is weighed against: the software of the same row, as tutorials write it down. Whole compilers,
# package lists and pip's cache stay in the layers, and what DeepSpeed compiled in a first step stays too.
ARG BASE=docker.io/library/debian:bookworm-slim
FROM ${BASE}
# hadolint ignore=DL3009,DL3015
RUN --mount=type=secret,id=apt,mode=0444 --mount=type=secret,id=apt-sources,mode=0444 \
    --mount=type=secret,id=ca,mode=0444 \
    if [ -s /run/secrets/apt ]; then export APT_CONFIG=/run/secrets/apt; fi; \
    apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y build-essential git python3 python3-dev python3-venv
ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
RUN python3 -m venv /opt/venv
# pip keeps what PyPI sends, for PyPI says that it never changes. A mirror may not say so, and a folder says nothing: all
# wheels are fetched first, and then come from a server that says it, as a tutorial's do.
# hadolint ignore=DL3042
RUN --mount=type=bind,source=wheels,target=/wheels \
    --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=bind,source=bench/serve.py,target=/run/serve.py \
    --mount=type=secret,id=pip --mount=type=secret,id=ca \
    mkdir /tmp/served; python /run/serve.py /tmp/served & \
    for each in tools torch deps toolkit ops; do \
        if [ ! -s /requirements/$each.txt ]; then continue; fi; \
        mkdir -p /tmp/served/$each; \
        PIP_CONFIG_FILE=/run/secrets/pip pip download --no-cache-dir --no-deps --no-build-isolation \
            --find-links /wheels/$each -d /tmp/served/$each -r /requirements/$each.txt || exit 1; \
        PIP_CONFIG_FILE=/dev/null pip install --no-index --no-build-isolation --trusted-host 127.0.0.1:8099 \
            --find-links http://127.0.0.1:8099/$each/ -r /requirements/$each.txt || exit 1; \
        rm -r /tmp/served/$each; \
    done
# The first step, on the CPU; an image without its DeepSpeed for that has no residue.
RUN --mount=type=bind,source=bench/train.py,target=/run/train.py \
    export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=/root/.cache/torch_extensions; \
    torchrun --nproc-per-node 1 --local-addr 127.0.0.1 /run/train.py
WORKDIR /workspace
