// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strconv"
	"time"

	"weft/api"
	"weft/datapath"
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

var captureKinds = map[datapath.CapturedKind]string{
	datapath.CapturedIn: api.CapturedIn, datapath.CapturedOut: api.CapturedOut,
	datapath.CapturedDrop: api.CapturedDrop, datapath.CapturedTrace: api.CapturedTrace,
}

var captureVerdicts = map[datapath.CaptureVerdict]string{
	datapath.VerdictSent: api.VerdictSent, datapath.VerdictDropped: api.VerdictDropped,
	datapath.VerdictMissed: api.VerdictControl, datapath.VerdictNeighbour: api.VerdictNeighbour,
	datapath.VerdictMerged: api.VerdictMerged,
}

var captureCaches = map[datapath.CaptureCache]string{
	datapath.CacheExact: "exact", datapath.CacheMegaflow: "megaflow", datapath.CacheControl: "control",
}

// Captured converts a captured frame to the API's type. It leaves out the number of lost frames and
// the megaflow. wallBase is the wall-clock time at which CLOCK_MONOTONIC was 0.
func Captured(f *datapath.Captured, names openflow.Names, wallBase time.Time) *api.Captured {
	c := &api.Captured{
		Time: wallBase.Add(time.Duration(f.TimeNS)), Worker: f.Worker, Kind: captureKinds[f.Kind],
		Port: PortWord(names, f.Port), InPort: PortWord(names, f.InPort), Verdict: captureVerdicts[f.Verdict],
		OutputCount: f.OutputCount, Len: f.Len, Data: f.Data,
	}
	for _, no := range f.Outputs {
		c.Outputs = append(c.Outputs, PortWord(names, no))
	}
	if f.Reason != packet.DropNone {
		c.Reason = f.Reason.String()
	}
	if f.HeldNS != 0 {
		c.HeldUS = float64(f.TimeNS-min(f.HeldNS, f.TimeNS)) / 1e3
	}
	if f.Kind != datapath.CapturedTrace {
		c.Flow = Summary(f, names)
		return c
	}
	c.Flow = openflow.FormatMatch(FrameMatch(&f.Key), names)
	c.Trace = &api.LiveTrace{
		Cache: captureCaches[f.Cache], Masks: int(f.Masks),
		Actions: openflow.FormatDatapathActions(f.Actions, names), Frames: f.Frames,
	}
	for i, ns := range f.StageNS {
		c.Trace.Stages = append(c.Trace.Stages, api.StageTime{Name: datapath.StageNames[i], NS: ns})
	}
	return c
}

// PortWord returns the name of a port or, if the port no longer exists, its number.
func PortWord(names openflow.Names, number uint32) string {
	if name, ok := names.PortName(number); ok {
		return name
	}
	if number == datapath.ControllerPort {
		return "controller"
	}
	return strconv.FormatUint(uint64(number), 10)
}

// masks of fields in the 64-bit words of a flow key (package flowtable)
const (
	keyVLAN      = 0xffff
	keyProto     = 0xff << 56
	keyFrag      = 0xff << 32
	keyVLAN2     = 0xffff << 16
	keyTCPFlags  = 0xffff
	keyICMP      = 0x00ff00ff << 32 // type and code
	keyIPv6Label = 0xffffffff
)

// FrameMatch returns the match that has exactly the fields of a frame with key k. Fields that such a
// frame cannot have are not matched.
func FrameMatch(k *flowtable.Key) *openflow.Match {
	var mask flowtable.Key
	for i, word := range k {
		if word != 0 {
			mask[i] = ^uint64(0)
		}
	}
	unless := func(set bool, word int, bits uint64) {
		if !set {
			mask[word] &^= bits
		}
	}
	etherType, proto := k.EtherType(), k.Proto()
	ipv6 := etherType == packet.EtherTypeIPv6
	icmp := !ipv6 && proto == packet.ProtoICMP || ipv6 && proto == packet.ProtoICMPv6
	unless(k[flowtable.WEthSrc]&keyVLAN != 0, flowtable.WEthSrc, keyVLAN)
	unless(k[flowtable.WIP]&keyVLAN2 != 0, flowtable.WIP, keyVLAN2)
	unless(k[flowtable.WIP]&keyFrag != 0, flowtable.WIP, keyFrag)
	unless(proto == packet.ProtoTCP, flowtable.WIP, keyTCPFlags)
	unless(ipv6, flowtable.WL4, keyIPv6Label)
	unless(!icmp, flowtable.WL4, ^uint64(keyICMP)&^keyIPv6Label)
	for _, word := range []int{flowtable.WCTSrc, flowtable.WCTDst} {
		switch {
		case !ipv6:
			mask[word+1] &= 0xffffffff // ct_nw_src, ct_nw_dst
		case mask[word]|mask[word+1] != 0:
			mask[word], mask[word+1] = ^uint64(0), ^uint64(0)
		}
	}
	m := openflow.MatchOf(k, &mask)
	return &m
}

// Summary returns the addresses and ports of a captured frame in match syntax. It returns "" for a
// malformed frame.
func Summary(f *datapath.Captured, names openflow.Names) string {
	var b packet.Batch
	frame, header := b.Next()
	copy(header[:], f.Data)
	n := min(f.Len, len(header))
	if n < f.Len {
		b.AddSpan(frame, 1, uint32(f.Len-n)) // the uncaptured rest is never read
	}
	b.Commit(frame, n)
	var key flowtable.Key
	if flowtable.Extract(&b, frame, &key) != packet.DropNone {
		return ""
	}
	// The input port is not a part of the summary: api.Captured has a field for it.
	key[flowtable.WPort] = 0
	key[flowtable.WIP] &= keyProto | keyVLAN2
	key[flowtable.WL4] &^= keyIPv6Label
	m := FrameMatch(&key)
	m.Mask[flowtable.WIP] &= keyProto | keyVLAN2
	m.Mask[flowtable.WL4] &^= keyIPv6Label
	return openflow.FormatMatch(m, names)
}
