// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Fleet is a declaration (networks, groups, hosts and ports), or a part of it, as a central has
// sent it.
type Fleet struct {
	Revision int64
	Nets     Kind[*wire.Net]
	Hosts    Kind[*wire.Host]
	Ports    Kind[*wire.Port]
	Groups   Kind[*wire.Group]
	Binds    map[string]*wire.BoundPort  // bindings by port id
	Status   map[string]*wire.HostReport // status by host id
}

// Object is a declared network, group, host or port, as a protobuf message.
type Object interface {
	proto.Message
	GetId() string
	GetName() string
}

// Kind has the objects of one kind, sorted by name.
type Kind[T Object] struct {
	All    []T
	noun   string
	byID   map[string]T
	byName map[string]T
}

func kindOf[T Object](noun string, objects []T) Kind[T] {
	k := Kind[T]{All: slices.Clone(objects), noun: noun, byID: make(map[string]T, len(objects)), byName: make(map[string]T, len(objects))}
	slices.SortFunc(k.All, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, o := range k.All {
		k.byID[o.GetId()], k.byName[o.GetName()] = o, o
	}
	return k
}

// NewFleet makes a Fleet from the messages in which a central has sent it.
func NewFleet(parts []*wire.ListReply) *Fleet {
	f := &Fleet{Binds: map[string]*wire.BoundPort{}, Status: map[string]*wire.HostReport{}}
	var nets []*wire.Net
	var hosts []*wire.Host
	var ports []*wire.Port
	var groups []*wire.Group
	for _, p := range parts {
		f.Revision = max(f.Revision, p.GetRevision())
		nets, hosts, ports = append(nets, p.GetNets()...), append(hosts, p.GetHosts()...), append(ports, p.GetPorts()...)
		groups = append(groups, p.GetGroups()...)
		for _, b := range p.GetBinds() {
			f.Binds[b.GetBind().GetPort()] = b
		}
		for _, s := range p.GetStatus() {
			f.Status[s.GetStatus().GetHost()] = s
		}
	}
	f.Nets, f.Hosts, f.Ports = kindOf("net", nets), kindOf("host", hosts), kindOf("port", ports)
	f.Groups = kindOf("group", groups)
	return f
}

// mostNamed limits the number of names in an error.
const mostNamed = 10

// verbOf has the word of the command weft for each kind of object. The word for security groups is
// secgroup, because the word group is for OpenFlow groups.
var verbOf = map[string]string{"net": "net", "group": "secgroup", "host": "host", "port": "port"}

// Find returns the object with this name. If there is none, it returns the object with
// this id. The error lists the known names.
func (k *Kind[T]) Find(nameOrID string) (T, error) {
	o, ok := k.Lookup(nameOrID)
	switch {
	case ok:
		return o, nil
	case len(k.All) == 0:
		return o, errorf("%s: no such %s; none is declared", quoted(nameOrID), k.noun)
	case len(k.All) > mostNamed:
		return o, errorf("%s: no such %s; weft %s list prints all", quoted(nameOrID), k.noun, verbOf[k.noun])
	}
	var names []string
	for _, o := range k.All {
		names = append(names, o.GetName())
	}
	return o, errorf("%s: no such %s; expected one of %s", quoted(nameOrID), k.noun, strings.Join(names, ", "))
}

// Lookup finds an object as Find does. It returns false if there is none.
func (k *Kind[T]) Lookup(nameOrID string) (T, bool) {
	if o, ok := k.byName[nameOrID]; ok {
		return o, true
	}
	o, ok := k.byID[nameOrID]
	return o, ok
}

func (k *Kind[T]) name(id string) string {
	if o, ok := k.byID[id]; ok {
		return o.GetName()
	}
	return id
}

// NewID returns an id of 80 random bits. An id that is derived from the name could
// collide after a rename.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// NewMAC returns a random, locally administered MAC address.
func NewMAC() MAC {
	m := MAC{0x02}
	_, _ = rand.Read(m[1:]) // crypto/rand.Read never fails
	return m
}

// FreeVNI returns the lowest VNI that no network of the fleet uses.
func (f *Fleet) FreeVNI() uint32 {
	used := map[uint32]bool{}
	for _, n := range f.Nets.All {
		used[n.GetVni()] = true
	}
	vni := uint32(1)
	for used[vni] {
		vni++
	}
	return vni
}

// maxName limits names and ids in bytes, like a certificate's common name (RFC 5280,
// ub-common-name).
const maxName = 64

// CheckName checks a name or an id. subject is "name" or "id", for the text of the
// error.
func CheckName(subject, name string) error {
	wrong := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:@+-", r))
	}
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, wrong) {
		return errorf("%s %s: expected 1 to %d letters, digits or any of . _ : @ + -", subject, quoted(name), maxName)
	}
	return nil
}

func quoted(text string) string {
	if len(text) > 80 {
		text = text[:80] + "..."
	}
	for _, r := range text {
		if r <= ' ' || r > '~' || r == '"' {
			return `"` + escape(text) + `"`
		}
	}
	if text == "" {
		return `""`
	}
	return text
}

func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			b.WriteString(`\x` + hex.EncodeToString([]byte{c}))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
