#!/usr/bin/env bash
# Trains on JAX on all machines of a TPU pod slice, such as a v5e-16: JAX itself finds the others.
#
#     TPU=my-slice ZONE=us-west4-a examples/distributed/tpu_pod.sh --data /mnt/photos --out /mnt/runs/photos
#
# Every machine needs keras3-vit[jax,train], JAX for TPUs (pip install 'jax[tpu]'), the data on a
# disk of its own, and an --out folder that all of them see.
set -euo pipefail
arguments=$(printf ' %q' "$@")
exec gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=all \
  --command "KERAS_BACKEND=jax keras-vit train --distribution fsdp$arguments"
