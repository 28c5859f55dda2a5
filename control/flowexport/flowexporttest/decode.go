// SPDX-License-Identifier: Apache-2.0

// Package flowexporttest is a slow decoder of IPFIX by RFC 7011, which shares nothing with the encoder.
package flowexporttest

import (
	"encoding/binary"
	"fmt"
)

// Field is a field of a template.
type Field struct {
	Name string // number of the element, with its enterprise
	Size int
}

// Decoder has the templates and the sequence numbers of one sender.
type Decoder struct {
	Templates map[uint64][]Field // by domain and number
	sequence  map[uint32]uint32
}

// NewDecoder returns a Decoder that knows no template.
func NewDecoder() *Decoder { return &Decoder{map[uint64][]Field{}, map[uint32]uint32{}} }

// Message decodes a message, and returns its records. A record maps the names of its elements to their
// values. If a record has two elements of the same name, the second one has the suffix ' in the map.
func (d *Decoder) Message(b []byte) (domain uint32, records []map[string][]byte, err error) {
	if len(b) < 16 || binary.BigEndian.Uint16(b) != 10 || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return 0, nil, fmt.Errorf("no message of IPFIX: % x", b)
	}
	domain = binary.BigEndian.Uint32(b[12:])
	sequence := binary.BigEndian.Uint32(b[8:])
	for rest := b[16:]; len(rest) > 0; {
		id, size := binary.BigEndian.Uint16(rest), int(binary.BigEndian.Uint16(rest[2:]))
		if size < 4 || size > len(rest) {
			return 0, nil, fmt.Errorf("a set of %d bytes in %d", size, len(rest))
		}
		set := rest[4:size]
		rest = rest[size:]
		if id == 2 {
			if err := d.template(domain, set); err != nil {
				return 0, nil, err
			}
			continue
		}
		for len(set) > 3 { // less is padding
			var r map[string][]byte
			if r, set, err = d.record(domain, id, set); err != nil {
				return 0, nil, err
			}
			records = append(records, r)
		}
	}
	if want := d.sequence[domain]; sequence != want {
		return 0, nil, fmt.Errorf("domain %d: sequence %d, expected %d", domain, sequence, want)
	}
	d.sequence[domain] += uint32(len(records))
	return domain, records, nil
}

func (d *Decoder) template(domain uint32, set []byte) error {
	for len(set) >= 4 {
		id, n := binary.BigEndian.Uint16(set), int(binary.BigEndian.Uint16(set[2:]))
		set = set[4:]
		var list []Field
		for range n {
			number, size := binary.BigEndian.Uint16(set), int(binary.BigEndian.Uint16(set[2:]))
			set = set[4:]
			f := Field{Name: fmt.Sprint(number & 0x7fff), Size: size}
			if number&0x8000 != 0 {
				f.Name = fmt.Sprintf("%d/%d", binary.BigEndian.Uint32(set), number&0x7fff)
				set = set[4:]
			}
			list = append(list, f)
		}
		d.Templates[uint64(domain)<<16|uint64(id)] = list
	}
	return nil
}

func (d *Decoder) record(domain uint32, id uint16, b []byte) (r map[string][]byte, rest []byte, err error) {
	fields := d.Templates[uint64(domain)<<16|uint64(id)]
	if fields == nil {
		return nil, nil, fmt.Errorf("domain %d has no template %d", domain, id)
	}
	r = map[string][]byte{}
	for _, f := range fields {
		size := f.Size
		if size == 65535 {
			size, b = int(b[0]), b[1:]
		}
		if size > len(b) {
			return nil, nil, fmt.Errorf("element %s of %d bytes in %d", f.Name, size, len(b))
		}
		name := f.Name
		if r[name] != nil {
			name += "'"
		}
		r[name], b = append([]byte{}, b[:size]...), b[size:]
	}
	return r, b, nil
}
