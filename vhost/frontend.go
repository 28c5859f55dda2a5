// SPDX-License-Identifier: Apache-2.0

package vhost

// frontEnd is the state that the connected front end has set up with its messages. When the engine stores
// the state (see Part), each descriptor field is an index into Part.FDs instead.
type frontEnd struct {
	Owned       bool         `json:"owned,omitempty"`
	Features    uint64       `json:"features"`
	FeaturesSet bool         `json:"features_set,omitempty"`
	Protocol    uint64       `json:"protocol"`
	MTU         int          `json:"mtu,omitempty"`
	Status      uint8        `json:"status,omitempty"`
	Regions     []RegionSpec `json:"regions,omitempty"`
	Vrings      []vringState `json:"vrings"`
	Log         LogSpec      `json:"log"`
	Announce    []byte       `json:"announce,omitempty"` // MAC address that the device announces with a RARP request at its next start
	Record      int          `json:"record"`             // descriptor of the shared memory in which the engine records ring positions; -1: none
	Inflight    InflightSpec `json:"inflight"`
	// Backend is unused now. In snapshots of older builds, it is the descriptor of the
	// channel of BACKEND_REQ; -1: none.
	Backend int `json:"backend"`

	// dropped has descriptors that nobody uses any more. Session.sweep closes them without the session's
	// lock, after the engine has closed its duplicates, because a close may block: see Session.dispose.
	dropped []int
}

// vringState is the state of one ring. Its position in frontEnd.Vrings is the ring's
// index.
type vringState struct {
	Num    int    `json:"num,omitempty"`
	Desc   uint64 `json:"desc,omitempty"`
	Avail  uint64 `json:"avail,omitempty"`
	Used   uint64 `json:"used,omitempty"`
	Placed bool   `json:"placed,omitempty"` // SET_VRING_ADDR has come
	// true if SET_VRING_KICK has come after the latest GET_VRING_BASE
	Started bool   `json:"started,omitempty"`
	Enabled bool   `json:"enabled,omitempty"`
	Base    uint16 `json:"base,omitempty"`
	Kick    int    `json:"kick"` // Kick, Call and Err are descriptors of eventfds; -1: none
	Call    int    `json:"call"`
	Err     int    `json:"err"`
}

func newFrontEnd(pairs int) frontEnd {
	f := frontEnd{Vrings: make([]vringState, 2*pairs), Record: -1, Backend: -1}
	for i := range f.Vrings {
		f.Vrings[i] = vringState{Kick: -1, Call: -1, Err: -1}
	}
	return f
}

// usable reports whether the front end has sent the ring's size, its addresses and a kick message.
func (v *vringState) usable() bool { return v.Num > 0 && v.Placed && v.Started }

// almostUsable reports whether at most one of the three conditions of usable is missing. The next message
// may then make the ring usable.
func (v *vringState) almostUsable() bool {
	return v.Num > 0 && (v.Placed || v.Started) || v.Placed && v.Started
}

// ready reports whether the device can start: the features are set, the guest has memory, and each
// direction has an enabled, usable ring.
func (f *frontEnd) ready() bool {
	var have [2]bool
	for i := range f.Vrings {
		if f.Vrings[i].usable() && f.Vrings[i].Enabled {
			have[i%2] = true
		}
	}
	return f.FeaturesSet && len(f.Regions) > 0 && have[0] && have[1]
}

// eachFD calls visit for each descriptor in the state. visit gets a pointer to the field that has the
// descriptor, so that it may replace the descriptor.
func (f *frontEnd) eachFD(visit func(fd *int)) {
	for i := range f.Regions {
		visit(&f.Regions[i].FD)
	}
	if f.Record >= 0 {
		visit(&f.Record)
	}
	if f.Log.Size > 0 {
		visit(&f.Log.FD)
	}
	if f.Inflight.Size > 0 {
		visit(&f.Inflight.FD)
	}
	if f.Backend >= 0 {
		visit(&f.Backend)
	}
	for i := range f.Vrings {
		f.Vrings[i].eachFD(visit)
	}
}

// eachFD calls visit with a pointer to each descriptor of the ring.
func (v *vringState) eachFD(visit func(fd *int)) {
	for _, fd := range []*int{&v.Kick, &v.Call, &v.Err} {
		if *fd >= 0 {
			visit(fd)
		}
	}
}

// drop moves the descriptor *fd to the list dropped and sets *fd to -1.
func (f *frontEnd) drop(fd *int) {
	if *fd >= 0 {
		f.dropped = append(f.dropped, *fd)
	}
	*fd = -1
}

func (f *frontEnd) dropRegions() {
	for i := range f.Regions {
		f.drop(&f.Regions[i].FD)
	}
	f.Regions = nil
}

func (f *frontEnd) resetVrings() {
	for i := range f.Vrings {
		v := &f.Vrings[i]
		f.drop(&v.Kick)
		f.drop(&v.Call)
		f.drop(&v.Err)
		*v = vringState{Kick: -1, Call: -1, Err: -1}
	}
}

// dropAll resets the state, and moves all descriptors to the list dropped.
func (f *frontEnd) dropAll(pairs int) {
	f.eachFD(f.drop)
	dropped := f.dropped
	*f = newFrontEnd(pairs)
	f.dropped = dropped
}

func (f *frontEnd) dropInflight() {
	if f.Inflight.Size > 0 {
		f.drop(&f.Inflight.FD)
	}
	f.Inflight = InflightSpec{}
}

func (f *frontEnd) dropLog() {
	if f.Log.Size > 0 {
		f.drop(&f.Log.FD)
	}
	f.Log = LogSpec{}
}

// clone copies the state without duplicating the descriptors.
func (f *frontEnd) clone() frontEnd {
	c := *f
	c.dropped = nil
	c.Regions = append([]RegionSpec{}, f.Regions...)
	c.Vrings = append([]vringState{}, f.Vrings...)
	return c
}

// spec returns the device specification for the engine, and a list of descriptors.
// Each descriptor field of the specification is an index into this list.
func (f *frontEnd) spec(mtu int, resume bool) (DeviceSpec, []int) {
	var fds []int
	add := func(fd int) int {
		if fd < 0 {
			return -1
		}
		fds = append(fds, fd)
		return len(fds) - 1
	}
	s := DeviceSpec{Features: f.Features & (ringFeatures | offloadFeatures), MTU: mtu, Resume: resume}
	if f.MTU > 0 {
		s.MTU = f.MTU
	}
	for _, r := range f.Regions {
		r.FD = add(r.FD)
		s.Regions = append(s.Regions, r)
	}
	s.Record = add(f.Record) + 1
	if f.Features&FeatureLogAll != 0 && f.Log.Size > 0 {
		s.Log = f.Log
		s.Log.FD = add(f.Log.FD)
	}
	if f.Inflight.Size > 0 {
		s.Inflight = f.Inflight
		s.Inflight.FD = add(f.Inflight.FD)
	}
	if len(f.Announce) == 6 {
		s.Announce = f.Announce
	}
	for i := range f.Vrings {
		if v := &f.Vrings[i]; v.usable() {
			s.Vrings = append(s.Vrings, VringSpec{Index: i, Num: v.Num, Desc: v.Desc, Avail: v.Avail, Used: v.Used,
				LastAvail: v.Base, Kick: add(v.Kick), Call: add(v.Call), Enabled: v.Enabled})
		}
	}
	return s, fds
}
