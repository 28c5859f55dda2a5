#!/bin/sh
# record.sh DIRECTORY FILE   writes FILE, the state of a switch with some of everything, by weftd
# and weft of a released version in DIRECTORY. As root; it makes a namespace of its own.
# TestStateOf030 shows how a test reads such a file.
set -eu
if [ -z "${INSIDE:-}" ]; then
	export INSIDE=yes
	exec unshare -n -m "$0" "$(realpath "$1")" "$(realpath "$2")"
fi
mount -t tmpfs none /run
mkdir -p /run/weft
ip link set lo up
weft() { "$bin/weft" "$@"; }
bin=$1
"$bin/weftd" --state /run/weft/state --workers 1 >/run/weft/log 2>&1 &
for _ in $(seq 600); do
	weft show >/dev/null 2>&1 && break
	sleep 0.1
done
weft add-port vm1 type=vhost-user path=/run/weft/vm1.sock vni=100 tag=5
weft add-port vm2 type=vhost-user path=/run/weft/vm2.sock
weft add-port overlay type=vxlan vni=100 remote=172.16.0.2
weft add-port gen type=geneve vni=flow remote=flow
weft add-br br-int
weft add-br br-ex
weft add-port vm3 type=vhost-user path=/run/weft/vm3.sock bridge=br-int
weft add-port patch-a type=patch peer=patch-b bridge=br-int
weft add-port patch-b type=patch peer=patch-a bridge=br-ex
weft add-tlv-map '{class=0x0102,type=0x80,len=4}->tun_metadata0'
weft add-group group_id=1,type=select,bucket=weight=2,actions=vm1,bucket=actions=overlay
weft add-meter meter=1,kbps,burst,bands=type=drop,rate=10000,burst_size=1000
weft mod-table 3 limit:1000 evict
weft add-flow actions=normal
weft add-flow "table=0,priority=200,cookie=0x7,importance=3,tcp,tp_dst=22,ct_state=-trk,actions=ct(table=1,zone=5)"
weft add-flow "table=1,ct_state=+trk+new,tcp,actions=ct(commit,nat(src=10.0.0.1-10.0.0.9)),normal"
weft add-flow "priority=300,in_port=vm1,ip,nw_src=10.0.0.0/24,actions=meter:1,group:1"
weft add-flow "priority=301,tun_metadata0=0x5,in_port=gen,actions=set_field:9->reg1,learn(table=2,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),vm1"
weft add-flow "priority=302,ipv6,ipv6_src=fd00::/64,actions=set_field:fd00::1->ipv6_dst,dec_ttl,push_vlan:0x8100,set_field:4103->vlan_vid,overlay"
weft --bridge br-int add-flow "in_port=vm3,actions=patch-a"
weft --bridge br-ex add-flow "actions=normal"
weft set-controller br-int tcp:127.0.0.1:6653
weft set-fail-mode br-ex standalone
weft ct-set-limits default=1000 zone=5,limit=200
weft ct-timeout zone=5 tcp_established=3600
weft del-port vm2
weft shutdown >/dev/null
wait
gzip -9nc /run/weft/state/state.db >"$2"
