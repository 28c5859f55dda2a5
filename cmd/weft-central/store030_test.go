// SPDX-License-Identifier: Apache-2.0

package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/central/wire"
)

// listed is a host, a network or a port, as weft 0.3.0 lists it with --json.
type listed struct {
	Name, ID string

	Endpoint string // of a host

	VNI, MTU uint32 // of a network
	Flood    bool

	Net        string // of a port
	MAC        string
	Addresses  []string
	Host       string
	MoveTo     string `json:"move_to"`
	SpoofCheck bool   `json:"spoof_check"`
	Bound      string // name of the host to which the port is bound
}

// listed returns all hosts, networks and ports of the central in the order of weft's lists.
func (l *lone) listed() (objects []listed) {
	l.t.Helper()
	l.retry(func(ctx context.Context) error {
		objects = nil
		stream, err := l.admin.List(ctx, &wire.ListRequest{Nets: true, Ports: true, Hosts: true, Binds: true})
		if err != nil {
			return err
		}
		names, bound := map[string]string{}, map[string]string{}
		var nets, ports []listed
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for _, h := range r.Hosts {
				names[h.Id] = h.Name
				objects = append(objects, listed{Name: h.Name, ID: h.Id, Endpoint: text(h.Endpoint)})
			}
			for _, n := range r.Nets {
				names[n.Id] = n.Name
				nets = append(nets, listed{Name: n.Name, ID: n.Id, VNI: n.Vni, MTU: n.Mtu, Flood: n.Flood})
			}
			for _, p := range r.Ports {
				port := listed{
					Name: p.Name, ID: p.Id, Net: p.Net, MAC: net.HardwareAddr(p.Mac).String(), Addresses: []string{},
					Host: p.Host, MoveTo: p.MoveTo, SpoofCheck: !p.Unchecked,
				}
				for _, a := range p.Addresses {
					port.Addresses = append(port.Addresses, text(a))
				}
				ports = append(ports, port)
			}
			for _, b := range r.Binds {
				bound[b.Bind.Port] = b.Bind.Host
			}
		}
		for i := range ports {
			p := &ports[i]
			p.Net, p.Host, p.MoveTo, p.Bound = names[p.Net], names[p.Host], names[p.MoveTo], names[bound[p.ID]]
		}
		slices.SortFunc(ports, func(a, b listed) int { return strings.Compare(a.Name, b.Name) })
		objects = append(append(objects, nets...), ports...)
		return nil
	})
	return objects
}

func text(address []byte) string {
	a, _ := netip.AddrFromSlice(address)
	return a.String()
}

// A backup of a central of version 0.3.0 is restored completely: hosts, networks, ports and bindings are
// what 0.3.0 listed. A host keeps its bound ports and gets another one. testdata/record.sh has recorded
// the files.
func TestStoreOf030(t *testing.T) {
	dir := t.TempDir()
	l := &lone{t: t, dir: filepath.Join(dir, "data"), address: freeAddress(t), hosts: map[string]*loneHost{}}
	l.mustRun("init", "--name", "a", "--address", l.address, "--peer", freeAddress(t), "--data", l.dir)
	backup := filepath.Join(dir, "backup")
	if err := unpack(backup, "testdata/store-0.3.0.db.gz"); err != nil {
		t.Fatal(err)
	}
	l.mustRun("restore", "--data", l.dir, backup)
	l.begin()

	want := readListed(t, "testdata/store-0.3.0.json")
	compare := func(moment string) {
		t.Helper()
		if got := l.listed(); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s, the declaration is\n%s\nwant\n%s", moment, lines(got), lines(want))
		}
	}
	compare("restored")
	alpha := l.host("alpha")
	alpha.plug("web", "pinned", "moving", "free")
	for i := range want {
		if want[i].Name == "free" {
			want[i].Bound = "alpha"
		}
	}
	for end := time.Now().Add(time.Minute); !reflect.DeepEqual(l.listed(), want) && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	compare("with a host")
	l.kill()
	l.run()
	compare("after a second start")
}

func readListed(t *testing.T, file string) (objects []listed) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var list []listed
		err := d.Decode(&list)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, list...)
	}
}

func lines(list []listed) (s string) {
	for _, o := range list {
		s += fmt.Sprintf("%+v\n", o)
	}
	return s
}

// unpack writes the contents of a gzip file into another file.
func unpack(to, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}
