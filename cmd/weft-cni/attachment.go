// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
)

// attachment identifies one interface of a container in a network. The names of its port and its veth
// device depend only on these fields, so that the plugin needs no files of its own.
type attachment struct {
	network, container, ifname string
}

func attachmentOf(c *config, args *skel.CmdArgs) attachment {
	return attachment{c.Name, args.ContainerID, args.IfName}
}

// hash returns the first digits of a hash of the texts. The texts have no zero bytes.
func hash(digits int, texts ...string) string {
	sum := sha256.New()
	for _, text := range texts {
		sum.Write(append([]byte(text), 0))
	}
	return hex.EncodeToString(sum.Sum(nil))[:digits]
}

// portPrefix returns the prefix of the names of a network's ports. The operation GC finds the ports by
// it.
func portPrefix(network string) string { return "cni-" + hash(12, network) + "-" }

// port returns the name of the port.
func (a attachment) port() string {
	return portPrefix(a.network) + hash(16, a.network, a.container, a.ifname)
}

// device returns the name of the host's end of the veth pair. It has 15 characters, the largest number
// that Linux allows.
func (a attachment) device() string { return "cni" + hash(12, a.network, a.container, a.ifname) }

// id returns the value of the port's option id=, which tells users to which container the port belongs.
// weftd allows at most 255 characters, without blanks and commas.
func (a attachment) id() string {
	id := a.network + "/" + a.container + "/" + url.PathEscape(a.ifname)
	return id[:min(len(id), 255)]
}

// attachmentOfID converts the result of the method id back to an attachment. The result is another
// attachment if the id was cut at 255 characters.
func attachmentOfID(id string) (a attachment, ok bool) {
	words := strings.Split(id, "/")
	if len(words) != 3 {
		return a, false
	}
	ifname, err := url.PathUnescape(words[2])
	return attachment{words[0], words[1], ifname}, err == nil
}

// aliasPrefix returns the prefix of the aliases of a network's veth devices. The operation GC finds the
// devices by it.
func aliasPrefix(network string) string { return "weft-cni " + network + " " }

// alias returns the alias of the veth device, as "ip link" shows it. Linux allows at most 255 bytes.
func (a attachment) alias() string {
	alias := aliasPrefix(a.network) + a.container + " " + a.ifname
	return alias[:min(len(alias), 255)]
}
