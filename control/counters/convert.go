// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"fmt"

	"weft/datapath"
	"weft/internal/shm"
	"weft/port"
)

// A new drop reason, or another number of megaflows, moves the counters behind it. A region of
// another build is copied, so that rules and ports keep their counts through an upgrade.

// reasonsV1 is the number of drop reasons in version 1, which does not say.
const reasonsV1 = 44

// words before a port's counters of drops
const trafficWords = 4

// convert returns a new region with the counts of c, a region of another layout. Its
// counters of ports begin at offset in mem. Counters of workers begin at 0 again. Tunnels
// are of the engine of the other build, which is replaced.
func (c *Region) convert(mem []byte, offset, megaflows int) (*Region, error) {
	reasons := int(c.header.Reasons)
	if c.header.Version == 1 {
		reasons = reasonsV1
	}
	stride := trafficWords + 2*reasons + 1
	if c.header.Version == 1 {
		stride -= reasons // drops of outputs have no reasons
	}
	l := shm.Layout{Off: offset}
	shm.Carve[uint64](&l, port.MaxPorts*stride)
	if reasons <= 0 || reasons > 1<<10 || len(mem) < l.Off {
		return nil, fmt.Errorf("counter region of %d bytes with %d drop reasons: another layout", len(mem), reasons)
	}
	next, err := New(megaflows)
	if err != nil {
		return nil, err
	}
	next.header.Slots = min(c.header.Slots, uint64(megaflows))
	copy(next.Rules, c.Rules)
	copy(next.Slots, c.Slots)
	old := shm.Carve[uint64](&shm.Layout{Mem: mem, Off: offset}, port.MaxPorts*stride)
	for i := range next.Ports {
		copyPort(&next.Ports[i], old[i*stride:(i+1)*stride], reasons)
	}
	return next, nil
}

// copyPort copies counters with another number of reasons. A reason keeps its place in the
// list.
func copyPort(to *datapath.PortCounters, from []uint64, reasons int) {
	copy(shm.Words(to)[:trafficWords], from)
	from = from[trafficWords:]
	copy(to.RxDrops[:], from[:reasons])
	to.TxDrops = from[reasons]
	copy(to.TxReasons[:], from[reasons+1:])
}
