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
# Wheels that lie in a folder come by HTTP, as from an index: pip caches what it downloads, and nothing else.
# hadolint ignore=DL3042
RUN --mount=type=bind,source=wheels,target=/wheels \
    --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=bind,source=bench/serve.py,target=/run/serve.py \
    --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python /run/serve.py /wheels & \
    for each in tools torch deps toolkit ops; do \
        if [ ! -s /requirements/$each.txt ]; then continue; fi; \
        PIP_CONFIG_FILE=/run/secrets/pip pip install --no-build-isolation --trusted-host 127.0.0.1:8099 \
            --find-links http://127.0.0.1:8099/$each/ -r /requirements/$each.txt || exit 1; \
    done
# The first step, on the CPU; an image without its DeepSpeed for that has no residue.
RUN --mount=type=bind,source=bench/train.py,target=/run/train.py \
    export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=/root/.cache/torch_extensions; \
    torchrun --nproc-per-node 1 --local-addr 127.0.0.1 /run/train.py
WORKDIR /workspace
