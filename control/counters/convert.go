// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"fmt"

	"weft/datapath"
	"weft/internal/shm"
	"weft/port"
)

// A build with other drop reasons, or with another number of megaflows, has another layout of the counter
// region, the shared memory with the counters. The control process copies a region of another layout into
// a new region, so that rules and ports keep their counts through an upgrade.

// reasonsV1 is the number of drop reasons in a counter region of version 1. Only later versions have the
// number in the header.
const reasonsV1 = 44

// trafficWords is the number of 64-bit words before the drop counters of a port.
const trafficWords = 4

// convert copies the counts of c, a region of another layout, into a new region. mem is the memory of c.
// The counters of ports begin at offset in mem. The counters of workers begin at 0 again. The records of
// tunnels are not copied, because they belong to the engine of the other build, which is replaced.
func (c *Region) convert(mem []byte, offset, megaflows int) (*Region, error) {
	reasons := int(c.header.Reasons)
	if c.header.Version == 1 {
		reasons = reasonsV1
	}
	stride := trafficWords + 2*reasons + 1
	if c.header.Version == 1 {
		stride -= reasons // in version 1, the drops of outputs have no reasons
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

// copyPort copies the counters of a port from a region with the given number of drop reasons. A
// reason has the same index in both layouts.
func copyPort(to *datapath.PortCounters, from []uint64, reasons int) {
	copy(shm.Words(to)[:trafficWords], from)
	from = from[trafficWords:]
	copy(to.RxDrops[:], from[:reasons])
	to.TxDrops = from[reasons]
	copy(to.TxReasons[:], from[reasons+1:])
}
