// SPDX-License-Identifier: Apache-2.0

package underlay

import "github.com/safchain/ethtool"

// Link has the settings of a network device, from the kernel and the device's driver.
type Link struct {
	MAC    [6]byte
	Mbps   uint32 // speed in Mbit/s; 0: unknown
	Duplex Duplex
	// Copper and Fiber tell the medium, if the driver knows it.
	Copper, Fiber bool
	Negotiated    bool // speed and duplex are negotiated with the peer
}

// Duplex tells whether a link sends and receives at the same time.
type Duplex uint8

// Values of Duplex.
const (
	DuplexUnknown Duplex = iota
	DuplexHalf
	DuplexFull
)

// Values of struct ethtool_cmd (include/uapi/linux/ethtool.h).
const (
	speedUnknown = 0xffffffff
	duplexHalf   = 0
	duplexFull   = 1
	portTP       = 0 // twisted pair
	portFibre    = 3
)

// linkSettings asks the driver of a device for its settings by ethtool. Fields that the driver
// does not tell are empty.
func linkSettings(tool *ethtool.Ethtool, dev string) (l Link) {
	var c ethtool.EthtoolCmd
	speed, err := tool.CmdGet(&c, dev)
	if err != nil {
		return l
	}
	if speed != speedUnknown {
		l.Mbps = speed
	}
	switch c.Duplex {
	case duplexHalf:
		l.Duplex = DuplexHalf
	case duplexFull:
		l.Duplex = DuplexFull
	}
	l.Copper, l.Fiber, l.Negotiated = c.Port == portTP, c.Port == portFibre, c.Autoneg != 0
	return l
}

// Links returns the settings of the namespace's network devices, by name.
func (k *Kernel) Links() map[string]Link {
	k.mu.Lock()
	defer k.mu.Unlock()
	links := make(map[string]Link, len(k.links))
	for _, l := range k.links {
		links[l.name] = l.settings
	}
	return links
}
