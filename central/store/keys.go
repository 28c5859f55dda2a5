// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Prefix is the beginning of every key.
const Prefix = "/weft/v1/"

// Keys under Prefix. Objects:
//
//	net/<id>  group/<id>  port/<id>  host/<id>  bind/<port id>  status/<host id>
//	revoked/serial/<serial>  revoked/name/<role>/<name>
//
// Guards, keys that make a value unique. The value of a guard is the id of the object
// that has the name, number or address:
//
//	guard/name/net/<name>  guard/name/port/<name>  guard/name/host/<name>  guard/name/group/<name>
//	guard/vni/<vni>  guard/endpoint/<hex>
//	guard/mac/<net id>/<hex>  guard/ip/<net id>/<hex>
//	guard/pin/<host id>/<port id>    the declaration of the port names the host
//	guard/group/<group id>/port:<port id>     the port is in the group
//	guard/group/<group id>/group:<group id>   a rule of the second group names the first
//
// Other keys:
//
//	request/<id>            the request took effect at this key's revision
//	intent                  every change of the declaration writes this key
//	writer                  a large request in progress, see journal.go
//	journal/<token>/<n>     the operations of a large request
const (
	netPrefix     = Prefix + "net/"
	groupPrefix   = Prefix + "group/"
	portPrefix    = Prefix + "port/"
	hostPrefix    = Prefix + "host/"
	bindPrefix    = Prefix + "bind/"
	statusPrefix  = Prefix + "status/"
	revokedPrefix = Prefix + "revoked/"
	guardPrefix   = Prefix + "guard/"
	requestPrefix = Prefix + "request/"
	journalPrefix = Prefix + "journal/"
	intentKey     = Prefix + "intent"
	writerKey     = Prefix + "writer"
)

func netKey(id string) string      { return netPrefix + id }
func groupKey(id string) string    { return groupPrefix + id }
func portKey(id string) string     { return portPrefix + id }
func hostKey(id string) string     { return hostPrefix + id }
func bindKey(port string) string   { return bindPrefix + port }
func statusKey(host string) string { return statusPrefix + host }
func requestKey(id string) string  { return requestPrefix + id }

func nameGuard(kind, name string) string { return guardPrefix + "name/" + kind + "/" + name }
func vniGuard(vni uint32) string         { return fmt.Sprintf("%svni/%d", guardPrefix, vni) }
func endpointGuard(ip []byte) string     { return guardPrefix + "endpoint/" + hex.EncodeToString(ip) }
func macGuards(net string) string        { return guardPrefix + "mac/" + net + "/" }
func macGuard(net string, mac []byte) string {
	return macGuards(net) + hex.EncodeToString(mac)
}
func ipGuard(net string, ip []byte) string {
	return guardPrefix + "ip/" + net + "/" + hex.EncodeToString(ip)
}
func pinGuards(host string) string      { return guardPrefix + "pin/" + host + "/" }
func pinGuard(host, port string) string { return pinGuards(host) + port }
func groupGuards(group string) string   { return guardPrefix + "group/" + group + "/" }
func groupGuard(group, kind, id string) string {
	return groupGuards(group) + kind + ":" + id
}

// kindRow describes a kind of object: the prefix of its keys, and its message type.
type kindRow struct {
	kind   Kind
	prefix string
	empty  func() proto.Message
	id     func(proto.Message) string
}

// kinds lists the kinds in the order in which a Reset passes objects. A kind comes after the kinds to
// which its objects refer.
var kinds = []kindRow{
	{KindNet, netPrefix, func() proto.Message { return &wire.Net{} }, func(m proto.Message) string { return m.(*wire.Net).GetId() }},
	{KindHost, hostPrefix, func() proto.Message { return &wire.Host{} }, func(m proto.Message) string { return m.(*wire.Host).GetId() }},
	{KindGroup, groupPrefix, func() proto.Message { return &wire.Group{} }, func(m proto.Message) string { return m.(*wire.Group).GetId() }},
	{KindPort, portPrefix, func() proto.Message { return &wire.Port{} }, func(m proto.Message) string { return m.(*wire.Port).GetId() }},
	{KindBind, bindPrefix, func() proto.Message { return &wire.Bind{} }, func(m proto.Message) string { return m.(*wire.Bind).GetPort() }},
	{KindStatus, statusPrefix, func() proto.Message { return &wire.HostStatus{} }, func(m proto.Message) string { return m.(*wire.HostStatus).GetHost() }},
	{KindRevocation, revokedPrefix, func() proto.Message { return &wire.Revocation{} }, func(m proto.Message) string { return revocationID(m.(*wire.Revocation)) }},
}

// decode decodes the key and the value of a stored object. isObject is false if the key
// is not the key of an object. A deleted object has no message.
func decode(key, value []byte, deleted bool, revision int64) (o Object, isObject bool, err error) {
	for i := range kinds {
		k := &kinds[i]
		id, ok := strings.CutPrefix(string(key), k.prefix)
		if !ok {
			continue
		}
		o = Object{Kind: k.kind, ID: id, Revision: revision}
		if deleted {
			return o, true, nil
		}
		m := k.empty()
		if err := proto.Unmarshal(value, m); err != nil {
			return o, true, fmt.Errorf("%s: %w", key, err)
		}
		if got := k.id(m); got != id {
			return o, true, fmt.Errorf("%s has the object of id %q", key, got)
		}
		o.Message = m
		return o, true, nil
	}
	return o, false, nil
}

// encode encodes a message. Equal messages have equal bytes, so bytes can be compared.
func encode(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}
