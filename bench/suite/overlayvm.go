// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"weft/e2e/lab"
)

// The functions below measure TCP between two virtual machines on one host. Without hardware
// virtualisation, emulation takes most of the time.

// ovsTSOPeer is Open vSwitch on DPDK with the settings that are fastest here: a poll thread that
// sleeps when it is idle, and the experimental segmentation offload.
const ovsTSOPeer = "ovs-dpdk-tso"

func machineFamily() []*experiment {
	return []*experiment{{name: "machines/tcp1", unit: "bit/s", peers: []string{weftPeer, linuxPeer, ovsTSOPeer}, measure: measureMachines}}
}

// measureMachines returns the bits per second between two virtual machines.
func measureMachines(r *run, peer string) float64 {
	l := lab.New(lab.Program{})
	r.atEnd(l.Close)
	host := l.Host("host")
	if accel, _ := l.Accelerator(); accel == "kvm" {
		r.note("under KVM", "", 1)
	}
	configs := []lab.VMConfig{{Name: "vm0", MAC: "02:00:00:00:01:01"}, {Name: "vm1", MAC: "02:00:00:00:01:02"}}
	if peer == linuxPeer {
		host.Run("ip", "link", "add", "br0", "up", "type", "bridge")
		for i := range configs {
			tap := fmt.Sprint("t", i)
			host.Run("ip", "tuntap", "add", tap, "mode", "tap", "vnet_hdr")
			host.Run("ip", "link", "set", tap, "master", "br0", "up")
			configs[i].Tap = tap
		}
	} else {
		var sw vswitch = new(weft)
		if peer == ovsTSOPeer {
			sw = &ovs{settings: []string{"userspace-tso-enable=true", "pmd-maxsleep=100"}}
		}
		sw.up(r, setup{guests: len(configs), flows: pairFlows})
		for i := range configs {
			configs[i].Vhost, configs[i].Serve = r.socket(i), true
		}
	}
	vms := host.VMs(configs...)
	for i, vm := range vms {
		vm.Address(overlayAddress(i)+"/24", 1500)
	}
	return machineIperf(r, vms)
}

func machineIperf(r *run, vms []*lab.VM) float64 {
	vms[1].Spawn("iperf3", "-s")
	eventually(10*time.Second, func() {
		vms[0].Run("ping", "-n", "-q", "-c", "1", "-W", "1", overlayAddress(1))
	})
	var report *iperfReport
	seconds := max(2, int(r.length.Seconds()))
	eventually(10*time.Second, func() {
		report = readIperf(vms[0].Run("iperf3", "-c", overlayAddress(1), "-J", "-t", fmt.Sprint(seconds)))
	})
	return report.End.Received.BitsPerSecond
}
