// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"net"
	"strconv"

	"weft/api"
	"weft/control/flowexport"
)

// exporterSetup returns the dependencies of the exporters of IPFIX and sFlow.
func (d *Daemon) exporterSetup() flowexport.Setup {
	return flowexport.Setup{Captures: d.captures, Interfaces: d.interfaces, Log: d.log}
}

// interfaces returns the ports of all bridges as collectors see them, without mirrors and exporters.
func (d *Daemon) interfaces() (list []flowexport.Interface) {
	indexes := map[string]int{}
	if devices, err := net.Interfaces(); err == nil {
		for i := range devices {
			indexes[devices[i].Name] = devices[i].Index
		}
	}
	datapathIDs := map[uint8]uint64{} // by number of bridge
	ports, _ := d.ports.List("")      // error ignored: "" stands for all ports
	for i := range ports {
		p := &ports[i]
		if p.Type == "mirror" || p.Type == "ipfix" || p.Type == "sflow" {
			continue
		}
		b := d.bridges.Named(p.Bridge)
		if b == nil { // deleted since
			continue
		}
		id, known := datapathIDs[b.Number]
		if !known {
			id, _ = strconv.ParseUint(d.bridges.Describe(b).DatapathID, 16, 64) // written by bridges, so it is valid
			datapathIDs[b.Number] = id
		}
		face := flowexport.InterfaceOf(p, b.Number, id, indexes[deviceOf(p)])
		if port := map[string]uint16{"vxlan": 4789, "geneve": 6081}[p.Type]; port != 0 {
			if own, err := strconv.ParseUint(p.Options["dst_port"], 10, 16); err == nil {
				port = uint16(own)
			}
			face.TunnelPort = port
		}
		list = append(list, face)
	}
	return list
}

// deviceOf returns the name of a port's network device in the network namespace of this process, or "".
func deviceOf(p *api.Port) string {
	switch p.Type {
	case "tap", "local", "device":
		if p.Options["netns"] == "" {
			return cmp.Or(p.Options["dev"], p.Name)
		}
	}
	return ""
}
