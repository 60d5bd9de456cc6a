#!/bin/sh
# Starts Valkey or Redis as the farm needs it; `broker.sh ping` is its health check.
set -eu

folder=${FARM_BROKER_FOLDER:-/etc/farm}
secrets=${FARM_BROKER_SECRETS:-/run/secrets}
port=${FARM_BROKER_PORT:-6379}
run=${FARM_BROKER_RUN:-/tmp}
server=$(command -v valkey-server || command -v redis-server)

if [ "${1:-}" = ping ]; then
  tls=
  [ ! -s "$secrets/broker_key" ] || tls="--tls --cacert $secrets/broker_ca"
  ${server%-server}-cli $tls -p "$port" ping | grep -qx PONG
  exit
fi

sed "s/FARM:/$(printf %s "$FARM" | sed 's/[\/&*?[]/\\&/g'):/g" "$folder/users.acl" >"$run/rules"
grep -v '^#' "$run/rules" | while read -r _ name rest; do
  case $rest in
  *PASSWORD*)
    file=$secrets/${name}_password
    [ -s "$file" ] || { echo "Error: the secret ${name}_password is missing or empty: run make-secrets" >&2; exit 2; }
    hash=$(tr -d '\n' <"$file" | sha256sum | cut -d ' ' -f 1)
    rest=$(printf %s "$rest" | sed "s/PASSWORD/#$hash/")
    ;;
  esac
  echo "user $name $rest"
done >"$run/users.acl"
rm "$run/rules"

set -- --aclfile "$run/users.acl" --protected-mode no --maxmemory "${FARM_BROKER_MAXMEMORY:-1gb}" --maxmemory-policy noeviction
if [ -s "$secrets/broker_key" ]; then
  set -- "$@" --port 0 --tls-port "$port" --tls-cert-file "$secrets/broker_certificate" --tls-key-file "$secrets/broker_key" \
    --tls-ca-cert-file "$secrets/broker_ca" --tls-auth-clients no
else
  set -- "$@" --port "$port"
fi
case ${FARM_PERSIST:-0} in
1 | true) set -- "$@" --dir "${FARM_BROKER_DATA:-/data}" --save '' --appendonly yes --appendfsync everysec ;;
*) set -- "$@" --dir "$run" --save '' --appendonly no ;;
esac
exec "$server" "$@"
