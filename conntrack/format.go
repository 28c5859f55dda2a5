// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"weft/packet"
)

// FormatOptions are the options of dump-conntrack in ovs-dpctl(8).
type FormatOptions struct {
	More       bool // -m: also the number and the status of the connection
	Statistics bool // -s: also the timeout
}

var tcpStateNames = [...]string{
	"CLOSED", "LISTEN", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "CLOSE_WAIT", "FIN_WAIT_1", "CLOSING",
	"LAST_ACK", "FIN_WAIT_2", "TIME_WAIT",
}

// String returns the TCP state's name in the output of ovs-dpctl.
func (s TCPState) String() string {
	if int(s) >= len(tcpStateNames) {
		return strconv.Itoa(int(s))
	}
	return tcpStateNames[s]
}

// ProtoName returns the name that ovs-dpctl prints for an IP protocol, or the number of an unnamed one.
func ProtoName(proto uint8) string {
	switch proto {
	case packet.ProtoICMP:
		return "icmp"
	case packet.ProtoICMPv6:
		return "icmpv6"
	case packet.ProtoTCP:
		return "tcp"
	case packet.ProtoUDP:
		return "udp"
	case packet.ProtoSCTP:
		return "sctp"
	}
	return strconv.Itoa(int(proto))
}

// Addrs returns the source and destination addresses, both of the tuple's family.
func (t *Tuple) Addrs() (src, dst netip.Addr) { return addr(t.Src, t.IPv6), addr(t.Dst, t.IPv6) }

func addr(a [2]uint64, ipv6 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], a[0])
	binary.BigEndian.PutUint64(b[8:], a[1])
	if ipv6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[12:]))
}

// SetAddrs sets the addresses of a tuple, which must have the same family.
func (t *Tuple) SetAddrs(src, dst netip.Addr) {
	t.IPv6 = src.Is6()
	t.Src, t.Dst = addrWords(src), addrWords(dst)
}

// addrWords returns an address as two words in the form of Tuple.Src.
func addrWords(a netip.Addr) [2]uint64 {
	if a.Is4() {
		b := a.As4()
		return [2]uint64{0, uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return [2]uint64{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

func appendTuple(buf []byte, t *Tuple) []byte {
	src, dst := t.Addrs()
	buf = append(buf, "src="...)
	buf = src.AppendTo(buf)
	buf = append(buf, ",dst="...)
	buf = dst.AppendTo(buf)
	if isICMP(t.Proto) {
		return fmt.Appendf(buf, ",id=%d,type=%d,code=%d", t.SrcPort, t.DstPort>>8, t.DstPort&0xff)
	}
	return fmt.Appendf(buf, ",sport=%d,dport=%d", t.SrcPort, t.DstPort)
}

// AppendTo appends the line that dump-conntrack prints for the connection, without a newline.
func (e *Entry) AppendTo(buf []byte, o FormatOptions) []byte {
	buf = append(buf, ProtoName(e.Orig.Proto)...)
	buf = append(buf, ",orig=("...)
	buf = appendTuple(buf, &e.Orig)
	buf = append(buf, "),reply=("...)
	buf = appendTuple(buf, &e.Reply)
	buf = append(buf, ')')
	if o.More {
		buf = fmt.Appendf(buf, ",id=%d", e.Ref.Number+1)
	}
	if e.Orig.Zone != 0 {
		buf = fmt.Appendf(buf, ",zone=%d", e.Orig.Zone)
	}
	if o.More {
		buf = e.appendStatus(buf)
	}
	if o.Statistics {
		buf = fmt.Appendf(buf, ",timeout=%d", e.TimeoutS)
	}
	buf = appendMarkAndLabel(buf, e.Mark, e.Label)
	switch e.Orig.Proto {
	case packet.ProtoTCP:
		buf = fmt.Appendf(buf, ",protoinfo=(state=%v)", e.State)
	case packet.ProtoSCTP:
		buf = fmt.Appendf(buf, ",protoinfo=(state=%s,vtag_orig=%d,vtag_reply=%d)", sctpStateName(e.Class), e.Tags[0], e.Tags[1])
	}
	if e.ALG != ALGNone {
		buf = append(append(buf, ",helper="...), e.ALG.String()...)
	}
	return buf
}

// String returns the gateway's name, as in ct(alg=) and in the output of ovs-dpctl.
func (a ALG) String() string {
	switch a {
	case ALGFTP:
		return "ftp"
	case ALGTFTP:
		return "tftp"
	}
	return ""
}

func appendMarkAndLabel(buf []byte, mark uint32, label [2]uint64) []byte {
	if mark != 0 {
		buf = fmt.Appendf(buf, ",mark=%d", mark)
	}
	switch {
	case label[0] != 0:
		return fmt.Appendf(buf, ",labels=0x%x%016x", label[0], label[1])
	case label[1] != 0:
		return fmt.Appendf(buf, ",labels=0x%x", label[1])
	}
	return buf
}

func sctpStateName(c Class) string {
	switch c {
	case sctpEstablished:
		return "ESTABLISHED"
	case sctpShutdown:
		return "SHUTDOWN_SENT"
	}
	return "COOKIE_WAIT"
}

func (e *Entry) appendStatus(buf []byte) []byte {
	buf = append(buf, ",status="...)
	if e.Replied {
		buf = append(buf, "SEEN_REPLY|"...)
	}
	buf = append(buf, "CONFIRMED"...)
	if e.SNAT {
		buf = append(buf, "|SRC_NAT"...)
	}
	if e.DNAT {
		buf = append(buf, "|DST_NAT"...)
	}
	return buf
}
