#!/bin/sh
# Mixtral 8x7B on trn1.32xlarge or inf2.24xlarge: exports the model once (up to an hour), then serves it on port 8080. One row: this family has no continuous batching on Neuron.
set -eu
DATA=${DATA:-$PWD/data}
IMAGE=${IMAGE:-tokenfarm-neuron:0.1.0}
mkdir -p "$DATA"
[ -e "$DATA/mixtral/model.pt" ] || docker run --rm -v "$DATA:/data" -e HF_TOKEN --user 0 --device=/dev/neuron0 --device=/dev/neuron1 --device=/dev/neuron2 --device=/dev/neuron3 --entrypoint optimum-cli "$IMAGE" \
  export neuron --model mistralai/Mixtral-8x7B-Instruct-v0.1 --batch_size 1 --sequence_length 4096 --tensor_parallel_size 8 /data/mixtral
exec docker run --rm -p 8080:80 -v "$DATA:/data" -e HF_TOKEN --shm-size 1g --device=/dev/neuron0 --device=/dev/neuron1 --device=/dev/neuron2 --device=/dev/neuron3 "$IMAGE" \
  --model-id /data/mixtral
