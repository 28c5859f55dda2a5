package control

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/packet"
)

// captureTap is the tap of a GET /v1/capture.
func (d *Daemon) captureTap(r *http.Request) (datapath.Tap, error) {
	q := r.URL.Query()
	tap := datapath.Tap{Kind: datapath.TapPort}
	name := q.Get("port")
	switch drops := q.Get("drops"); {
	case drops == "true":
		tap.Kind = datapath.TapDrops
	case drops != "" && drops != "false":
		return tap, inputf("drops=%s: expected true or false", drops)
	case name == "":
		return tap, inputf("port: expected a port's name, or drops=true")
	}
	if name != "" {
		d.mu.RLock()
		no, ok := d.view.byName[name]
		d.mu.RUnlock()
		if !ok && name == "controller" {
			no, ok = datapath.ControllerPort, true
		}
		if !ok {
			d.change.Lock()
			defer d.change.Unlock()
			return tap, d.noPort(name)
		}
		tap.Port = no
	}
	snap, err := numberWord(q.Get("snap"), "snap")
	tap.Snap = uint32(snap)
	if err == nil {
		tap.Limit, err = numberWord(q.Get("limit"), "limit")
	}
	return tap, err
}

// traceTap is the tap of a GET /v1/trace/live.
func (d *Daemon) traceTap(r *http.Request) (datapath.Tap, error) {
	q := r.URL.Query()
	tap := datapath.Tap{Kind: datapath.TapTrace, Snap: packet.InnerHeader}
	d.mu.RLock()
	view := d.view
	d.mu.RUnlock()
	mod, err := openflow.ParseFilter(q.Get("match"), view)
	if err != nil {
		return tap, asInput(err)
	}
	if mod.Table != openflow.TableAll || mod.CookieMask != 0 || mod.ByOutPort || mod.ByOutGroup {
		return tap, inputf("match %s: expected fields of frames, no table, cookie, out_port or out_group", q.Get("match"))
	}
	match := mod.Match.Unpack()
	for i, mask := range match.Mask {
		switch {
		case i < flowtable.KeyWords:
			tap.Mask[i], tap.Key[i] = mask, match.Value[i]
		case mask != 0:
			return tap, inputf("match %s: expected fields of frames, which have neither registers nor metadata", q.Get("match"))
		}
	}
	tap.Limit, err = numberWord(q.Get("limit"), "limit")
	return tap, err
}

func numberWord(word, name string) (uint64, error) {
	if word == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return 0, inputf("%s=%s: expected a number", name, word)
	}
	return n, nil
}

// streamCapture answers a request with frames, one JSON value each, for as long
// as the client listens.
func (d *Daemon) streamCapture(w http.ResponseWriter, r *http.Request, tap datapath.Tap) {
	out := newStream(w)
	wall := time.Now().Add(-time.Duration(clock.Monotonic()))
	begun := false
	err := d.capture(r.Context(), tap, func() error { begun = true; return out.begin() }, out.flush,
		func(f *datapath.Capture, lost uint64) error { return out.send(d.captured(f, lost, wall)) })
	if err != nil && !begun {
		d.reply(w, nil, err)
	}
}

// stream writes JSON values to a client as they come.
type stream struct {
	w       http.ResponseWriter
	enc     *json.Encoder
	control *http.ResponseController
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, enc: json.NewEncoder(w), control: http.NewResponseController(w)}
}

// begin sends the header, by which the client knows that what it asked for is in
// force.
func (s *stream) begin() error {
	s.w.Header().Set("Content-Type", "application/x-ndjson")
	s.w.WriteHeader(http.StatusOK)
	return s.flush()
}

// streamPatience is how long a client may not read before it is given up.
const streamPatience = 10 * time.Second

func (s *stream) send(v any) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(streamPatience)) // only a listener that has none fails
	return s.enc.Encode(v)
}

func (s *stream) flush() error { return s.control.Flush() }

var captureKinds = map[datapath.CaptureKind]string{
	datapath.CaptureIn: api.CapturedIn, datapath.CaptureOut: api.CapturedOut,
	datapath.CaptureDrop: api.CapturedDrop, datapath.CaptureTrace: api.CapturedTrace,
}

var captureVerdicts = map[datapath.CaptureVerdict]string{
	datapath.VerdictSent: api.VerdictSent, datapath.VerdictDropped: api.VerdictDropped,
	datapath.VerdictMissed: api.VerdictControl, datapath.VerdictNeighbour: api.VerdictNeighbour,
	datapath.VerdictMerged: api.VerdictMerged,
}

var captureCaches = map[datapath.CaptureCache]string{
	datapath.CacheExact: "exact", datapath.CacheMegaflow: "megaflow", datapath.CacheControl: "control",
}

// captured puts a frame into words. wall is the time at which CLOCK_MONOTONIC
// was 0.
func (d *Daemon) captured(f *datapath.Capture, lost uint64, wall time.Time) *api.Captured {
	d.mu.RLock()
	defer d.mu.RUnlock()
	c := &api.Captured{
		Time: wall.Add(time.Duration(f.TimeNS)), Worker: f.Worker, Kind: captureKinds[f.Kind],
		Port: d.portWord(f.Port), InPort: d.portWord(f.InPort), Verdict: captureVerdicts[f.Verdict],
		OutputCount: f.OutputCount, Len: f.Len, Data: f.Data, Lost: lost,
	}
	for _, no := range f.Outputs {
		c.Outputs = append(c.Outputs, d.portWord(no))
	}
	if f.Reason != packet.DropNone {
		c.Reason = f.Reason.String()
	}
	if f.HeldNS != 0 {
		c.HeldUS = float64(f.TimeNS-min(f.HeldNS, f.TimeNS)) / 1e3
	}
	if f.Kind != datapath.CaptureTrace {
		c.Flow = d.summary(f)
		return c
	}
	c.Flow = openflow.FormatMatch(frameMatch(&f.Key), d.view)
	c.Trace = &api.LiveTrace{
		Cache: captureCaches[f.Cache], Masks: int(f.Masks), Megaflow: d.megaflowText(f),
		Actions: openflow.FormatDatapathActions(f.Actions, d.view), Frames: f.Frames,
	}
	for i, ns := range f.StageNS {
		c.Trace.Stages = append(c.Trace.Stages, api.StageTime{Name: datapath.StageNames[i], NS: ns})
	}
	return c
}

// portWord is the port's name, or its number if it is gone.
func (d *Daemon) portWord(no uint32) string {
	if name, ok := d.view.PortName(no); ok {
		return name
	}
	if no == datapath.ControllerPort {
		return "controller"
	}
	return strconv.FormatUint(uint64(no), 10)
}

// megaflowText is the match of the entry that a trace has hit, if it is there
// still. Caller holds mu.
func (d *Daemon) megaflowText(f *datapath.Capture) string {
	d.megaflows.mu.Lock()
	defer d.megaflows.mu.Unlock()
	if int(f.Slot) >= len(d.megaflows.slots) {
		return ""
	}
	m := d.megaflows.slots[f.Slot]
	if m == nil || !slices.Equal(m.actions[:min(len(m.actions), len(f.Actions))], f.Actions) {
		return ""
	}
	for i := range m.key {
		if f.Key[i]&m.mask()[i] != m.key[i] {
			return "" // the slot is another's by now
		}
	}
	match := openflow.MatchOf(&m.key, m.mask())
	return openflow.FormatMatch(&match, d.view)
}

// Parts of a key's words, as package flowtable lays them out.
const (
	keyVLAN      = 0xffff
	keyProto     = 0xff << 56
	keyFrag      = 0xff << 32
	keyVLAN2     = 0xffff << 16
	keyTCPFlags  = 0xffff
	keyICMP      = 0x00ff00ff << 32 // type and code
	keyIPv6Label = 0xffffffff
)

// frameMatch is a match of all that a frame has.
func frameMatch(k *flowtable.Key) *openflow.Match {
	var mask flowtable.Key
	for i, word := range k {
		if word != 0 {
			mask[i] = ^uint64(0)
		}
	}
	unless := func(is bool, word int, bits uint64) {
		if !is {
			mask[word] &^= bits
		}
	}
	etherType, proto := uint16(k[flowtable.WEthDst]), uint8(k[flowtable.WIP]>>56)
	ipv6 := etherType == packet.EtherTypeIPv6
	icmp := !ipv6 && proto == packet.ProtoICMP || ipv6 && proto == packet.ProtoICMPv6
	unless(k[flowtable.WEthSrc]&keyVLAN != 0, flowtable.WEthSrc, keyVLAN)
	unless(k[flowtable.WIP]&keyVLAN2 != 0, flowtable.WIP, keyVLAN2)
	unless(k[flowtable.WIP]&keyFrag != 0, flowtable.WIP, keyFrag)
	unless(proto == packet.ProtoTCP, flowtable.WIP, keyTCPFlags)
	unless(ipv6, flowtable.WL4, keyIPv6Label)
	unless(!icmp, flowtable.WL4, ^uint64(keyICMP)&^keyIPv6Label)
	m := openflow.MatchOf(k, &mask)
	return &m
}

// summary says what a captured frame is, in the words of a match: addresses and
// ports. A frame that makes no sense has none.
func (d *Daemon) summary(f *datapath.Capture) string {
	var b packet.Batch
	frame, header := b.Next()
	copy(header[:], f.Data)
	n := min(f.Len, len(header))
	if n < f.Len {
		b.AddSpan(frame, 1, uint32(f.Len-n)) // never read: no header reaches into it
	}
	b.Commit(frame, n)
	var key flowtable.Key
	if flowtable.Extract(&b, frame, &key) != packet.DropNone {
		return ""
	}
	// Who and what, not how: the port is told anyway.
	key[flowtable.WPort] = 0
	key[flowtable.WIP] &= keyProto | keyVLAN2
	key[flowtable.WL4] &^= keyIPv6Label
	m := frameMatch(&key)
	m.Mask[flowtable.WIP] &= keyProto | keyVLAN2
	m.Mask[flowtable.WL4] &^= keyIPv6Label
	return openflow.FormatMatch(m, d.view)
}

// captureRoutes are the requests that show frames.
func (d *Daemon) captureRoutes(mux *access.Mux) {
	taps := map[string]func(*http.Request) (datapath.Tap, error){
		"GET /v1/capture": d.captureTap, "GET /v1/trace/live": d.traceTap,
	}
	for pattern, tapOf := range taps {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			tap, err := tapOf(r)
			if err != nil {
				d.reply(w, nil, err)
				return
			}
			d.streamCapture(w, r, tap)
		})
	}
}
