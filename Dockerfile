# The worker functions' image: numpy, PyTorch (CPU), seqgc's worker and the user's own code, on AWS's
# base image.
#
#   docker build --platform linux/arm64 -t seqgc-worker .      (or linux/amd64)
#
# in a checkout, or in a folder that `seqgc deploy --context` has made. `sam build` passes the platform
# of template.yaml's Architecture. The base image and all wheels exist for both platforms.

ARG PYTHON_VERSION=3.13
# A tag can be moved, a digest cannot: --build-arg BASE_DIGEST=@sha256:... (see SECURITY.md)
ARG BASE_DIGEST=
FROM public.ecr.aws/lambda/python:${PYTHON_VERSION}${BASE_DIGEST}

# CPU wheels have an index of their own; from elsewhere, torch brings CUDA's gigabytes. Only torch comes
# from this index: of two indexes, pip takes any package from the one that claims the higher version.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# Locked by `make lock`. Nothing is built here: a build would run unreviewed code of packages.
COPY lambda_handlers/gradient_worker/torch.lock lambda_handlers/gradient_worker/requirements-torch.lock /tmp/build/
RUN python -m pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --no-deps \
        --index-url "${TORCH_INDEX}" --requirement /tmp/build/torch.lock \
    && python -m pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: \
        --require-hashes --requirement /tmp/build/requirements-torch.lock \
    && rm -rf /tmp/build

# Further packages for the user's own code. Installed packages keep their locked versions.
COPY own/requirements.txt /tmp/build/
RUN python -m pip freeze > /tmp/build/locked.txt \
    && python -m pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: \
        --constraint /tmp/build/locked.txt --requirement /tmp/build/requirements.txt \
    && rm -rf /tmp/build

# Last, because it changes most often.
COPY seqgc/ ${LAMBDA_TASK_ROOT}/seqgc/
COPY lambda_handlers/ ${LAMBDA_TASK_ROOT}/lambda_handlers/
COPY own/ ${LAMBDA_TASK_ROOT}/

# Compiled once here, not in every cold start: a function cannot write next to its code.
RUN python -m compileall -q ${LAMBDA_TASK_ROOT}

CMD ["lambda_handlers.gradient_worker.handler.handler"]
