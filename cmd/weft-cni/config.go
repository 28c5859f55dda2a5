// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"weft/api"
)

// config is the plugin's part of a network's configuration. docs/cni.md describes its keys.
type config struct {
	types.PluginConf
	Socket  string            `json:"socket"`
	Bridge  string            `json:"bridge"` // "": weftd's first bridge
	VLAN    *int              `json:"vlan"`
	MTU     int               `json:"mtu"`     // in bytes; 0: what the bridge's tunnels carry, at most 1500
	Offload bool              `json:"offload"` // known flows run in the kernel
	Bind    bool              `json:"bind"`    // the pod sends from its own addresses only
	Options map[string]string `json:"options"` // further options of the port
	Args    struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC       string     `json:"mac"`
		Bandwidth *bandwidth `json:"bandwidth"`
	} `json:"runtimeConfig"`

	mac net.HardwareAddr // of the pod's interface; nil: the kernel chooses
}

// bandwidth has the values of CNI's capability "bandwidth": rates in bits a second and bursts in bits.
// Ingress is the traffic to the pod. 0 means no limit.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// ownOptions has the port options that the plugin sets itself, so that the user may not set them. The
// value is the hint in the error message.
var ownOptions = map[string]string{
	"type": "it is always device", "dev": "the plugin names the device", "id": "the plugin sets it", "bridge": `use the key "bridge"`,
	"tag": `use the key "vlan"`, "offload": `use the key "offload"`, "mac": `use the key "bind"`, "addresses": `use the key "bind"`,
}

// Limits of the key "mtu". 68 is IPv4's least MTU, 65535 is veth's greatest.
const (
	leastMTU    = 68
	greatestMTU = 65535
)

func parse(data []byte) (*config, error) {
	c := &config{Socket: api.DefaultSocket}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, failure(types.ErrDecodingFailure, "the configuration of the network: %v", err)
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, failure(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	if wrong := c.wrong(); wrong != "" {
		return nil, failure(types.ErrInvalidNetworkConfig, "network %s: %s", c.Name, wrong)
	}
	return c, nil
}

// wrong returns what is wrong with the keys "mtu", "vlan" and "options" or with a MAC address, or "" if
// they are right. weftd checks the values of port options itself.
func (c *config) wrong() string {
	if c.MTU != 0 && (c.MTU < leastMTU || c.MTU > greatestMTU) {
		return fmt.Sprintf("mtu %d: expected %d to %d", c.MTU, leastMTU, greatestMTU)
	}
	if c.VLAN != nil && (*c.VLAN < 0 || *c.VLAN > 4095) {
		return fmt.Sprintf("vlan %d: expected 0 to 4095", *c.VLAN)
	}
	for _, key := range slices.Sorted(maps.Keys(c.Options)) {
		if instead := ownOptions[key]; instead != "" {
			return fmt.Sprintf("options %s: %s", key, instead)
		}
	}
	return c.chooseMAC("")
}

// chooseMAC sets c.mac. It takes the first address that is given, in this order: the capability "mac",
// fromArgs (from CNI_ARGS), the key "args". The CNI plugin "bridge" has the same order.
func (c *config) chooseMAC(fromArgs string) (wrong string) {
	for _, text := range []string{c.RuntimeConfig.MAC, fromArgs, c.Args.CNI.MAC} {
		if text == "" {
			continue
		}
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			return fmt.Sprintf("MAC address %s: expected a unicast address as in 02:00:00:00:00:01", text)
		}
		c.mac = mac
		return ""
	}
	return ""
}

// readArgs takes the MAC address from CNI_ARGS. It ignores other arguments, which may be for other
// plugins.
func (c *config) readArgs(args *skel.CmdArgs) error {
	for pair := range strings.SplitSeq(args.Args, ";") {
		if mac, ok := strings.CutPrefix(pair, "MAC="); ok {
			if wrong := c.chooseMAC(mac); wrong != "" {
				return failure(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s", wrong)
			}
		}
	}
	return nil
}

// portOptions returns the options of the attachment's port. ips are the pod's addresses.
func (c *config) portOptions(a attachment, mac net.HardwareAddr, ips []*current.IPConfig) []string {
	words := []string{"type=device", "dev=" + a.device(), "id=" + a.id()}
	if c.Bridge != "" {
		words = append(words, "bridge="+c.Bridge)
	}
	if c.VLAN != nil {
		words = append(words, fmt.Sprint("tag=", *c.VLAN))
	}
	if c.Offload {
		words = append(words, "offload=on")
	}
	if c.Bind {
		words = append(words, "addresses="+binding(mac, ips))
	}
	given := c.limits()
	for _, key := range slices.Sorted(maps.Keys(c.Options)) {
		if given[key] == "" {
			given[key] = c.Options[key]
		}
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		words = append(words, key+"="+given[key])
	}
	return words
}

// binding returns the value of the port's option addresses=. It has the MAC and IP addresses from which
// the pod may send.
func binding(mac net.HardwareAddr, ips []*current.IPConfig) string {
	words := []string{mac.String()}
	for _, ip := range ips {
		words = append(words, ip.Address.IP.String())
	}
	return strings.Join(words, " ")
}

// limits returns the port options for the pod's bandwidth. Traffic to the pod goes through a
// rate-limited queue of its port. Traffic from the pod is policed, at a rate in kilobits a second.
func (c *config) limits() map[string]string {
	options := map[string]string{}
	b := c.RuntimeConfig.Bandwidth
	if b == nil {
		return options
	}
	if b.IngressRate > 0 {
		options["qos"] = fmt.Sprint("0:", b.IngressRate)
		if b.IngressBurst > 0 {
			options["qos"] += fmt.Sprint(":", b.IngressBurst)
		}
	}
	if b.EgressRate > 0 {
		options["ingress_policing_rate"] = fmt.Sprint(max(1, b.EgressRate/1000))
		if b.EgressBurst > 0 {
			options["ingress_policing_burst"] = fmt.Sprint(max(1, b.EgressBurst/1000))
		}
	}
	return options
}
