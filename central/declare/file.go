// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"fmt"

	"github.com/pelletier/go-toml/v2"

	"weft/central/wire"
	"weft/internal/tomltext"
)

// MaxFile limits the size of a declaration file in bytes. The limit of a request,
// 200,000 ports, takes about 40 MiB.
const MaxFile = 64 << 20

// File is a declaration file.
type File struct {
	Nets   []Net   `toml:"net,omitempty" json:"nets"`
	Groups []Group `toml:"group,omitempty" json:"groups"`
	Hosts  []Host  `toml:"host,omitempty" json:"hosts"`
	Ports  []Port  `toml:"port,omitempty" json:"ports"`
}

// ParseFile parses and checks a declaration file.
func ParseFile(text []byte) (*File, error) {
	if len(text) > MaxFile {
		return nil, errorf("%d bytes; expected at most %d MiB", len(text), MaxFile>>20)
	}
	file := &File{}
	if err := tomltext.Decode(text, file); err != nil {
		return nil, errorf("%v", err)
	}
	return file, file.check()
}

func (file *File) check() error {
	names, ids := map[string]bool{}, map[string]bool{}
	object := func(kind string, i int, name, id string, err error) error {
		at := fmt.Sprintf("%s %s", kind, quoted(name))
		if name == "" {
			at = fmt.Sprintf("[[%s]] number %d", kind, i+1)
		}
		switch nameErr := CheckName("name", name); {
		case nameErr != nil:
			err = nameErr
		case id != "" && CheckName("id", id) != nil:
			err = CheckName("id", id)
		case names[kind+" "+name]:
			err = errorf("the name is there twice; expected once")
		case id != "" && ids[kind+" "+id]:
			err = errorf("id %s is there twice; each %s has its own", id, kind)
		}
		names[kind+" "+name], ids[kind+" "+id] = true, true
		if err != nil {
			return errorf("%s: %v", at, err)
		}
		return nil
	}
	for i := range file.Nets {
		n := &file.Nets[i]
		if err := object("net", i, n.Name, n.ID, n.check()); err != nil {
			return err
		}
	}
	for i := range file.Groups {
		g := &file.Groups[i]
		if err := object("group", i, g.Name, g.ID, g.check()); err != nil {
			return err
		}
	}
	for i := range file.Hosts {
		h := &file.Hosts[i]
		h.Endpoint = h.Endpoint.Unmap()
		if err := object("host", i, h.Name, h.ID, checkAddress("endpoint", h.Endpoint)); err != nil {
			return err
		}
	}
	for i := range file.Ports {
		p := &file.Ports[i]
		if err := object("port", i, p.Name, p.ID, p.check()); err != nil {
			return err
		}
	}
	return nil
}

func (n *Net) check() error {
	if n.VNI < 1 || n.VNI > maxVNI {
		return errorf("vni %d: expected a number from 1 to %d", n.VNI, maxVNI)
	}
	if n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU) {
		return errorf("mtu %d: expected a number from %d to %d, or no key for the underlay's", n.MTU, minMTU, maxMTU)
	}
	return n.Addressing.check()
}

func (p *Port) check() error {
	for i, a := range p.Addresses {
		p.Addresses[i] = a.Unmap()
		if err := checkAddress("addresses:", p.Addresses[i]); err != nil {
			return err
		}
	}
	_, err := addressBytes(p.Addresses)
	switch {
	case p.Net == "":
		return errorf("net is missing; expected the name of its network")
	case p.MAC == MAC{}:
		return errorf(`mac is missing; expected one as in "02:00:00:00:00:01"`)
	case p.MoveTo != "" && p.Host == "":
		return errorf("move-to %s without host; name the present host too, or neither", quoted(p.MoveTo))
	}
	return err
}

// File returns the declaration as a file in which every object has its id. If such a file is edited and
// applied, a changed name renames the object. If it is applied to another fleet, objects get the same
// ids.
func (f *Fleet) File() *File {
	file := &File{}
	for _, n := range f.Nets.All {
		file.Nets = append(file.Nets, NetOf(n))
	}
	for _, g := range f.Groups.All {
		file.Groups = append(file.Groups, f.GroupOf(g))
	}
	for _, h := range f.Hosts.All {
		file.Hosts = append(file.Hosts, HostOf(h))
	}
	for _, p := range f.Ports.All {
		file.Ports = append(file.Ports, f.PortOf(p))
	}
	return file
}

// Format returns the file as TOML for ParseFile.
func (file *File) Format() ([]byte, error) {
	short := &File{Nets: file.Nets, Groups: file.Groups, Hosts: file.Hosts, Ports: append([]Port(nil), file.Ports...)}
	for i := range short.Ports {
		if p := &short.Ports[i]; p.Checked() {
			p.SpoofCheck = nil
		}
	}
	return toml.Marshal(short)
}

func (n *Net) wire(id string) *wire.Net {
	return &wire.Net{Id: id, Name: n.Name, Vni: n.VNI, Mtu: n.MTU, Flood: n.Flood, Addressing: n.Addressing.wire()}
}

func (h *Host) wire(id string) *wire.Host {
	return &wire.Host{Id: id, Name: h.Name, Endpoint: h.Endpoint.AsSlice()}
}
