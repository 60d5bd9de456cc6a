#!/bin/sh
# Llama 3.1 8B on inf2.8xlarge or trn1.2xlarge: exports the model once (up to an hour), then serves it on port 8080.
set -eu
DATA=${DATA:-$PWD/data}
IMAGE=${IMAGE:-tokenfarm-neuron:0.1.0}
mkdir -p "$DATA"
[ -e "$DATA/llama/model.pt" ] || docker run --rm -v "$DATA:/data" -e HF_TOKEN --user 0 --device=/dev/neuron0 --entrypoint optimum-cli "$IMAGE" \
  export neuron --model meta-llama/Llama-3.1-8B-Instruct --batch_size 4 --sequence_length 4096 --tensor_parallel_size 2 /data/llama
exec docker run --rm -p 8080:80 -v "$DATA:/data" -e HF_TOKEN --shm-size 1g --device=/dev/neuron0 "$IMAGE" \
  --model-id /data/llama
