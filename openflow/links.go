// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// Subtypes of Nicira's actions for multipath, bundle and bundle_load.
const (
	nxMultipath  = 10
	nxBundle     = 12
	nxBundleLoad = 13
)

func init() {
	addAction(ActMultipath, actionRow{words: map[string]actionParse{"multipath": (*actionParser).multipath}, format: formatLinks, encode: appendLinks,
		nicira: map[uint16]niciraRow{nxMultipath: {22, (*actionDecoder).decodeMultipath}}})
	addAction(ActBundle, actionRow{words: map[string]actionParse{"bundle": (*actionParser).bundle, "bundle_load": (*actionParser).bundle},
		format: formatLinks, encode: appendLinks,
		nicira: map[uint16]niciraRow{nxBundle: {22, (*actionDecoder).decodeBundle}, nxBundleLoad: {22, (*actionDecoder).decodeBundle}}})
}

// This file has the actions multipath, bundle and bundle_load (ovs-actions(7)). They choose one of several
// links by a hash of the frame's fields, and are called link actions here. A link of multipath is a number.
// A link of bundle and bundle_load is a port. The megaflow of the frame matches all hashed fields.

// maxMembers is the largest number of ports of a bundle action. More are refused, as in
// Open vSwitch.
const maxMembers = 2048

// maxLinks is the largest number of links of a multipath action, because the wire has 16 bits for the
// highest link.
const maxLinks = 1 << 16

// LinkSpec holds the arguments of multipath, bundle and bundle_load.
type LinkSpec struct {
	Hashed    LinkFields
	Basis     uint16 // number that is hashed together with the fields
	Algorithm LinkAlgorithm
	MaxLink   uint16   // highest link of multipath; the lowest is 0
	Arg       uint32   // argument of multipath's iter_hash: the modulus
	Members   []uint32 // ports of bundle and bundle_load
}

// LinkFields says which fields of the frame a link action (multipath, bundle or bundle_load) hashes. The
// values are those on the wire.
type LinkFields uint8

// Values of LinkFields. linkFieldWords has their words in the same order.
const (
	HashEthSrc LinkFields = iota
	HashL4
	HashL3L4
	HashL3L4UDP
	HashNwSrc
	HashNwDst
	HashL3
)

var linkFieldWords = [...]string{"eth_src", "symmetric_l4", "symmetric_l3l4", "symmetric_l3l4+udp", "nw_src", "nw_dst", "symmetric_l3"}

// LinkAlgorithm says how a link action chooses a link by the hash. multipath has other algorithms than
// bundle and bundle_load. The numbers of both begin with 0, as on the wire.
type LinkAlgorithm uint8

// Algorithms of multipath, and below them those of bundle and bundle_load.
const (
	ModuloN LinkAlgorithm = iota
	HashThreshold
	MultipathHRW
	IterHash

	ActiveBackup LinkAlgorithm = 0
	BundleHRW    LinkAlgorithm = 1
)

var (
	multipathWords = [...]string{"modulo_n", "hash_threshold", "hrw", "iter_hash"}
	bundleWords    = [...]string{"active_backup", "hrw"}
)

// linkWords cuts the first n arguments of a link action at commas and spaces. "rest" is the text behind them.
func linkWords(text string, n int) (words []string, rest string) {
	const separators = ", "
	for len(words) < n {
		text = strings.TrimLeft(text, separators)
		at := strings.IndexAny(text, separators)
		if at < 0 {
			at = len(text)
		}
		if at == 0 {
			break
		}
		words, text = append(words, text[:at]), text[at:]
	}
	return words, strings.TrimLeft(text, separators)
}

// wordAt returns the index of a word in a list of words. It ignores case.
func wordAt(words []string, word string) (index int, ok bool) {
	for i, w := range words {
		if strings.EqualFold(w, word) {
			return i, true
		}
	}
	return 0, false
}

// parseLinks parses the first arguments of each link action: fields, basis and algorithm.
func parseLinks(words []string, algorithms []string) (*LinkSpec, error) {
	hashed, ok := wordAt(linkFieldWords[:], words[0])
	if !ok {
		return nil, wrong(words[0], "one of %s", strings.Join(linkFieldWords[:], ", "))
	}
	basis, ok := parseDecimal(words[1], 0xffff)
	if !ok {
		return nil, wrong(words[1], "a decimal number from 0 to 65535 as basis of the hash")
	}
	algorithm, ok := wordAt(algorithms, words[2])
	if !ok {
		return nil, wrong(words[2], "one of %s", strings.Join(algorithms, ", "))
	}
	return &LinkSpec{Hashed: LinkFields(hashed), Basis: uint16(basis), Algorithm: LinkAlgorithm(algorithm)}, nil
}

// linkDst parses the field to which a link action writes the chosen link.
func (p *actionParser) linkDst(t token, text string) (Subfield, error) {
	dst, ok := parseSubfield(text)
	if !ok {
		return dst, wrong(text, expectedSubfield)
	}
	return dst, p.check.writable(t.text, dst)
}

func (p *actionParser) multipath(t token) (Action, error) {
	words, _ := linkWords(t.value, 6)
	if len(words) < 6 {
		return Action{}, wrong(t.text, "multipath(FIELDS,BASIS,ALGORITHM,LINKS,ARG,FIELD[BITS])")
	}
	s, err := parseLinks(words, multipathWords[:])
	if err != nil {
		return Action{}, err
	}
	links, ok := parseDecimal(words[3], maxLinks)
	if !ok || links == 0 {
		return Action{}, wrong(words[3], "a number of links from 1 to %d", maxLinks)
	}
	arg, ok := parseDecimal(words[4], 1<<32-1)
	if !ok {
		return Action{}, wrong(words[4], "a decimal number of 32 bits as argument of the algorithm")
	}
	s.MaxLink, s.Arg = uint16(links-1), uint32(arg)
	dst, err := p.linkDst(t, words[5])
	if err != nil {
		return Action{}, err
	}
	if links > uint64(1)<<min(dst.Bits, 32) {
		return Action{}, wrong(words[5], "a field with bits for %d links", links)
	}
	return Action{Kind: ActMultipath, Dst: dst, Links: s}, nil
}

func (p *actionParser) bundle(t token) (Action, error) {
	n, usage := 4, "bundle(FIELDS,BASIS,ALGORITHM,ofport,members:PORT,PORT...)"
	if t.key == "bundle_load" {
		n, usage = 5, "bundle_load(FIELDS,BASIS,ALGORITHM,ofport,FIELD[BITS],members:PORT,PORT...)"
	}
	words, rest := linkWords(t.value, n)
	at := strings.IndexAny(rest, ": ")
	if at < 0 {
		at = len(rest)
	}
	if len(words) < n || !strings.EqualFold(rest[:at], "members") && !strings.EqualFold(rest[:at], "slaves") {
		return Action{}, wrong(t.text, "%s", usage)
	}
	s, err := parseLinks(words, bundleWords[:])
	if err != nil {
		return Action{}, err
	}
	if !strings.EqualFold(words[3], "ofport") {
		return Action{}, wrong(words[3], "ofport, the only kind of member")
	}
	a := Action{Kind: ActBundle, Links: s}
	for _, text := range strings.FieldsFunc(rest[at:], func(r rune) bool { return strings.ContainsRune(": ,[]", r) }) {
		port, err := parsePort(text, p.names)
		if err != nil {
			return Action{}, err
		}
		s.Members = append(s.Members, port)
	}
	if err := s.check(); err != nil {
		return Action{}, wrong(t.text, "%s", err)
	}
	if n == 4 {
		return a, nil
	}
	if a.Dst, err = p.linkDst(t, words[4]); err == nil && a.Dst.Bits < portBits {
		err = wrong(words[4], "a field with at least %d bits", portBits)
	}
	return a, err
}

// portBits is the least number of bits that a field must have so that bundle_load can write the number of a
// port to it.
const portBits = 16

// check returns an error if a bundle has more than maxMembers ports, or a port to which no frame can be sent.
func (s *LinkSpec) check() error {
	if len(s.Members) > maxMembers {
		return fmt.Errorf("at most %d members", maxMembers)
	}
	for _, port := range s.Members {
		if port == PortController || port >= PortMax && port < PortInPort {
			return fmt.Errorf("members that frames can be sent to, not port %d", port)
		}
	}
	return nil
}

func formatLinks(a *Action, names Names) string {
	s := a.Links
	if a.Kind == ActMultipath {
		return fmt.Sprintf("multipath(%s,%d,%s,%d,%d,%s)", linkFieldWords[s.Hashed], s.Basis, multipathWords[s.Algorithm], uint32(s.MaxLink)+1, s.Arg, a.Dst)
	}
	word, dst := "bundle", ""
	if a.Dst.Field != FNone {
		word, dst = "bundle_load", a.Dst.String()+","
	}
	members := make([]string, len(s.Members))
	for i, port := range s.Members {
		if members[i] = formatPort(port, names); port >= PortMax && port < PortInPort {
			members[i] = strconv.Itoa(int(port))
		}
	}
	return fmt.Sprintf("%s(%s,%d,%s,ofport,%smembers:%s)", word, linkFieldWords[s.Hashed], s.Basis, bundleWords[s.Algorithm], dst, strings.Join(members, ","))
}

// linkActionLen is the length in bytes of multipath, and of bundle without its members.
const linkActionLen = 32

func appendLinks(_ *actionEncoder, b []byte, a *Action) []byte {
	s := a.Links
	if a.Kind == ActMultipath {
		b = be.AppendUint16(be.AppendUint16(appendNX(b, nxMultipath), uint16(s.Hashed)), s.Basis)
		b = be.AppendUint16(be.AppendUint16(appendZeros(b, 2), uint16(s.Algorithm)), s.MaxLink)
		b = be.AppendUint16(appendZeros(be.AppendUint32(b, s.Arg), 2), a.Dst.bitsOf())
		return headersOf[a.Dst.Field].nxm.append(b, false)
	}
	subtype := uint16(nxBundle)
	if a.Dst.Field != FNone {
		subtype = nxBundleLoad
	}
	b = be.AppendUint16(be.AppendUint16(appendNX(b, subtype), uint16(s.Algorithm)), uint16(s.Hashed))
	b = headersOf[FInPort].nxm.append(be.AppendUint16(b, s.Basis), false)
	b = be.AppendUint16(b, uint16(len(s.Members)))
	if subtype == nxBundle {
		b = appendZeros(b, 6)
	} else {
		b = headersOf[a.Dst.Field].nxm.append(be.AppendUint16(b, a.Dst.bitsOf()), false)
	}
	b = appendZeros(b, 4)
	for _, port := range s.Members {
		b = be.AppendUint16(b, uint16(port))
	}
	return b
}

// decodeLinkDst decodes the field to which a link action writes the chosen link.
func (d *actionDecoder) decodeLinkDst(b []byte, minBits int) (Subfield, error) {
	dst, _, err := readSubfield(b[2:6], be.Uint16(b), nil)
	if err != nil {
		return dst, err
	}
	if int(dst.Bits) < minBits {
		return dst, Errorf(ErrActionBadArgument, "%s: expected at least %d bits for the link", dst, minBits)
	}
	return dst, d.codeOf(dst, d.check.writable("multipath or bundle_load", dst))
}

func (d *actionDecoder) decodeMultipath(_ uint16, b []byte) (Action, error) {
	if len(b) != linkActionLen-nxHeader {
		return Action{}, errActionLen
	}
	hashed, algorithm := be.Uint16(b), be.Uint16(b[6:])
	s := &LinkSpec{Hashed: LinkFields(hashed), Basis: be.Uint16(b[2:]), Algorithm: LinkAlgorithm(algorithm), MaxLink: be.Uint16(b[8:]), Arg: be.Uint32(b[10:])}
	if int(hashed) >= len(linkFieldWords) || int(algorithm) >= len(multipathWords) {
		return Action{}, Errorf(ErrActionBadArgument, "multipath: fields %d, algorithm %d: expected those of ovs-actions(7)", hashed, algorithm)
	}
	bits := 0
	for 1<<bits <= int(s.MaxLink) {
		bits++
	}
	dst, err := d.decodeLinkDst(b[16:], bits)
	return Action{Kind: ActMultipath, Dst: dst, Links: s}, err
}

func (d *actionDecoder) decodeBundle(subtype uint16, b []byte) (Action, error) {
	algorithm, hashed, members := be.Uint16(b), be.Uint16(b[2:]), int(be.Uint16(b[10:]))
	s := &LinkSpec{Hashed: LinkFields(hashed), Basis: be.Uint16(b[4:]), Algorithm: LinkAlgorithm(algorithm)}
	kind, _, err := readSubfieldHeader(b[6:10])
	switch {
	case int(hashed) >= len(linkFieldWords) || int(algorithm) >= len(bundleWords):
		return Action{}, Errorf(ErrActionBadArgument, "bundle: fields %d, algorithm %d: expected those of ovs-actions(7)", hashed, algorithm)
	case err != nil || kind != FInPort || be.Uint32(b[18:]) != 0:
		return Action{}, Errorf(ErrActionBadArgument, "bundle: expected members of the kind NXM_OF_IN_PORT, and zeros behind the field")
	case subtype == nxBundle && ValueOf(b[12:18]) != Value128{}:
		return Action{}, Errorf(ErrActionBadArgument, "bundle: expected zeros in place of a field")
	case members > maxMembers:
		return Action{}, Errorf(ErrActionBadArgument, "bundle: %d members: expected at most %d", members, maxMembers)
	case len(b) < linkActionLen-nxHeader+2*members:
		return Action{}, errActionLen
	}
	for i := range members {
		s.Members = append(s.Members, uint32(be.Uint16(b[linkActionLen-nxHeader+2*i:])))
	}
	if err := s.check(); err != nil {
		return Action{}, Errorf(ErrActionBadOutPort, "bundle: expected %v", err)
	}
	a := Action{Kind: ActBundle, Links: s}
	if subtype == nxBundleLoad {
		a.Dst, err = d.decodeLinkDst(b[12:], portBits)
	}
	return a, err
}
