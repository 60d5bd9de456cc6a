#!/bin/sh
# One container, one farm: takes TGI's options, `serve` as SageMaker calls it, or a `tokenfarm` command.
# Started as root it makes /data writable and becomes RUN_AS; under --user it stays who it is.
set -eu

case ${1:-} in
serve) # SageMaker's names, where the farm's own are not given
  shift
  : "${MODEL_ID:=${HF_MODEL_ID:?Error: HF_MODEL_ID is not set}}"
  export MODEL_ID PORT=8080
  [ -z "${HF_MODEL_REVISION:-}" ] || export REVISION="${REVISION:-$HF_MODEL_REVISION}"
  [ -z "${HF_MODEL_QUANTIZE:-}" ] || export QUANTIZE="${QUANTIZE:-$HF_MODEL_QUANTIZE}"
  [ -z "${HF_MODEL_TRUST_REMOTE_CODE:-}" ] || export TRUST_REMOTE_CODE="${TRUST_REMOTE_CODE:-$HF_MODEL_TRUST_REMOTE_CODE}"
  [ -z "${SM_NUM_GPUS:-}" ] || export NUM_SHARD="${NUM_SHARD:-$SM_NUM_GPUS}"
  set -- up "$@"
  ;;
up | gateway | worker | jobs) ;;
*) set -- up "$@" ;;
esac

# Runtimes set HOSTNAME to a name; here it is the address to listen on.
case ${HOSTNAME:-} in
*.*.*.* | *:*) ;;
*) export HOSTNAME=0.0.0.0 ;;
esac

# Inference Endpoints lays the model there and names none.
if [ -z "${MODEL_ID:-}" ] && [ -f /repository/config.json ]; then
  export MODEL_ID=/repository
fi

become=
if [ "$(id -u)" = 0 ]; then
  user=${RUN_AS:-1000}
  case $user in
  *[!0-9]*) echo "Error: RUN_AS=$user, allowed is the number of a user" >&2; exit 2 ;;
  esac
  # The group of each accelerator's device file may open it. Ports below 1024 stay open to the new user.
  groups=$(find /dev -maxdepth 2 \( -path '/dev/neuron*' -o -path '/dev/accel/*' -o -path '/dev/hl*' \) -type c -exec stat -c %g {} + | sort -un | paste -sd, -)
  caps=+net_bind_service
  # SYS_NICE is kept where it was given: Gaudi's software places its memory and threads with it.
  [ $((0x$(sed -n 's/^CapPrm:[[:space:]]*//p' /proc/self/status) >> 23 & 1)) = 0 ] || caps=$caps,+sys_nice
  become="setpriv --reuid=$user --regid=$user --groups=$user${groups:+,$groups} --inh-caps=-all,$caps --ambient-caps=-all,$caps"
  $become test -w "$HF_HOME" || chown "$user" "$HF_HOME"
fi

if ! $become test -w "$HF_HOME"; then
  echo "$HF_HOME cannot be written by user $($become id -u): downloads go to /tmp and end with the container" >&2
  export HF_HOME=/tmp/data
fi

exec $become tokenfarm "$@"
