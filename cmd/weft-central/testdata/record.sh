#!/bin/sh
# record.sh DIRECTORY NAME.db.gz   writes a compressed backup of a central with some of everything, and
# NAME.json, what the same version lists of it. DIRECTORY has weft, weftd and weft-central of a released
# version. As root; it makes a namespace of its own. TestStoreOf030 reads such files.
set -eu
if [ -z "${INSIDE:-}" ]; then
	export INSIDE=yes
	exec unshare -n -m -p -f --kill-child "$0" "$(realpath "$1")" "$(realpath "$2")"
fi
mount -t tmpfs none /run
mount -t proc none /proc
mkdir -p /run/weft
ip link set lo up
bin=$1
data=/run/central
export WEFT_CENTRAL=127.0.0.1:7700
weft() { "$bin/weft" --central-certs "$data/admin" "$@"; }
# until COMMAND...: repeats it for at most a minute
until_ok() {
	for _ in $(seq 600); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	"$@"
}
"$bin/weft-central" init --name a --address 127.0.0.1:7700 --data "$data" >/dev/null
"$bin/weft-central" run --data "$data" >/run/central.log 2>&1 &
central=$!
until_ok weft central status
weft host add alpha id=h1 endpoint=192.0.2.1
weft host add beta id=h2 endpoint=192.0.2.2
weft host add gamma id=h3 endpoint=2001:db8::3
weft net add blue id=n1 vni=100 mtu=1400 flood=on
weft net add green id=n2 vni=200
weft net add gone id=n3 vni=300
weft port add web id=p1 net=blue mac=02:00:00:00:00:01 addresses=10.0.0.1,fd00::1
weft port add pinned id=p2 net=blue mac=02:00:00:00:00:02 addresses=10.0.0.2 host=alpha
weft port add moving id=p3 net=blue mac=02:00:00:00:00:03 host=alpha move-to=beta
weft port add free id=p4 net=green mac=02:00:00:00:00:04 spoof-check=off
weft port add late id=p5 net=green mac=02:00:00:00:00:05 addresses=10.1.0.0
weft port set late addresses=10.1.0.5
weft net set green mtu=1300
weft net del gone
# The host alpha binds three ports.
token=$(weft --json central invite --role host --name alpha | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p')
"$bin/weft" central enrol --token "$token" --central-certs /run/alpha >/dev/null
"$bin/weftd" --state /run/weft/state --workers 1 --central "$WEFT_CENTRAL" --central-certs /run/alpha >/run/weft/log 2>&1 &
weftd=$!
until_ok weft show
for port in web pinned moving; do
	weft add-port "$port" "type=vhost-user" "path=/run/weft/$port.sock"
done
for port in web pinned moving; do
	until_ok sh -c "'$bin/weft' --central-certs $data/admin port why $port | grep -q 'on alpha'"
done
backup=${2%.gz}
rm -f "$backup"
weft central save "$backup" >/dev/null
for kind in host net port; do
	weft --json "$kind" list
done >"${backup%.db}.json"
gzip -9n "$backup"
kill "$weftd" "$central"
wait
