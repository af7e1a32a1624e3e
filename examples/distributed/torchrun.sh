#!/usr/bin/env bash
# Trains on torch with a process per GPU: data parallel, started by torchrun.
#
#     examples/distributed/torchrun.sh --data photos --out runs/photos
#
# On several machines, once on each: PROCESSES is the number of GPUs there, and
# TORCHRUN="--nnodes 2 --node-rank 0 --master-addr 10.0.0.1". All need the same --out folder.
set -euo pipefail
export KERAS_BACKEND=torch
exec torchrun --nproc-per-node "${PROCESSES:-2}" ${TORCHRUN:-} \
  -m keras_vit_cli train --distribution data_parallel "$@"
