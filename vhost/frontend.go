package vhost

// frontEnd is what the front end of the present connection has said. In the
// session the descriptors are this process's, in a snapshot indexes.
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
	Announce    []byte       `json:"announce,omitempty"` // by the device that is started next
	Record      int          `json:"record"`             // of the packed rings of a device that was started; -1: none
	Inflight    InflightSpec `json:"inflight"`
	// Backend is a channel for requests of the back end, as builds before this one
	// kept it; -1: none. It is dropped as soon as it is seen.
	Backend int `json:"backend"`

	// dropped are descriptors that are no longer used. The session closes them when
	// the engine keeps no duplicate any more, without its lock: see Session.dispose.
	dropped []int
}

// vringState is one ring; the index is its place.
type vringState struct {
	Num     int    `json:"num,omitempty"`
	Desc    uint64 `json:"desc,omitempty"`
	Avail   uint64 `json:"avail,omitempty"`
	Used    uint64 `json:"used,omitempty"`
	Placed  bool   `json:"placed,omitempty"`  // SET_VRING_ADDR came
	Started bool   `json:"started,omitempty"` // SET_VRING_KICK came, GET_VRING_BASE did not
	Enabled bool   `json:"enabled,omitempty"`
	Base    uint16 `json:"base,omitempty"`
	Kick    int    `json:"kick"` // -1: none
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

// usable tells whether the ring is part of the device.
func (v *vringState) usable() bool { return v.Num > 0 && v.Placed && v.Started }

// almostUsable tells whether the ring is usable, or one more message makes it so.
func (v *vringState) almostUsable() bool {
	return v.Num > 0 && (v.Placed || v.Started) || v.Placed && v.Started
}

// ready tells whether there is a device to start: memory, and a ring of each
// direction that is enabled.
func (f *frontEnd) ready() bool {
	var have [2]bool
	for i := range f.Vrings {
		if f.Vrings[i].usable() && f.Vrings[i].Enabled {
			have[i%2] = true
		}
	}
	return f.FeaturesSet && len(f.Regions) > 0 && have[0] && have[1]
}

// eachFD visits every descriptor, by reference.
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
		v := &f.Vrings[i]
		for _, fd := range []*int{&v.Kick, &v.Call, &v.Err} {
			if *fd >= 0 {
				visit(fd)
			}
		}
	}
}

// drop gives up a descriptor, if there is one.
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

// dropAll forgets all that the front end has said. Its descriptors are in dropped then.
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

// clone copies everything but the descriptors themselves.
func (f *frontEnd) clone() frontEnd {
	c := *f
	c.dropped = nil
	c.Regions = append([]RegionSpec{}, f.Regions...)
	c.Vrings = append([]vringState{}, f.Vrings...)
	return c
}

// spec describes the device, its descriptors being listed.
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
