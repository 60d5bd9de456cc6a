#!/bin/sh
# Qwen3 30B, 3B active on trn1.32xlarge or inf2.24xlarge: exports the model once (up to an hour), then serves it on port 8080.
set -eu
DATA=${DATA:-$PWD/data}
IMAGE=${IMAGE:-tokenfarm-neuron:0.1.0}
mkdir -p "$DATA"
[ -e "$DATA/qwen3_moe/model.pt" ] || docker run --rm -v "$DATA:/data" -e HF_TOKEN --user 0 --device=/dev/neuron0 --device=/dev/neuron1 --device=/dev/neuron2 --device=/dev/neuron3 --entrypoint optimum-cli "$IMAGE" \
  export neuron --model Qwen/Qwen3-30B-A3B --batch_size 4 --sequence_length 4096 --tensor_parallel_size 8 /data/qwen3_moe
exec docker run --rm -p 8080:80 -v "$DATA:/data" -e HF_TOKEN --shm-size 1g --device=/dev/neuron0 --device=/dev/neuron1 --device=/dev/neuron2 --device=/dev/neuron3 "$IMAGE" \
  --model-id /data/qwen3_moe
