// SPDX-License-Identifier: Apache-2.0

// Package privilege lists the capabilities that the control process needs for each kind of port, and
// compares them with the capabilities of this process. The control process may run as any user. If it lacks
// a capability, it refuses the ports that need the capability.
package privilege

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Need is a requirement: the capabilities that weftd must have for one kind of port or one option.
type Need struct {
	For          string // the options, or the work, for messages
	Capabilities []cap.Value
}

// Requirements of ports. A vhost-user port, a tunnel or a patch port needs no capability of its own. The
// table in docs/uplinks.md has these requirements, and further ones that the packaged systemd unit does not
// meet.
var (
	Tap       = Need{"a tap", []cap.Value{cap.NET_ADMIN}}
	Namespace = Need{"a tap with netns=", []cap.Value{cap.NET_ADMIN, cap.SYS_ADMIN}} // setns(2)
	// NET_ADMIN is for buffers beyond net.core.rmem_max.
	Packet = Need{"af_packet", []cap.Value{cap.NET_ADMIN, cap.NET_RAW}}
	// Whole lets an af_packet port send large tunnelled frames (GSO) unsegmented, through a tap. Without
	// these capabilities, the port cuts them into datagrams. With BPF, the kernel also counts the frames
	// that it queues on a tap. Without the count, workers look for frames with system calls.
	Whole = Need{"sending large frames of af_packet whole", []cap.Value{cap.NET_ADMIN, cap.BPF}}
	// PERFMON is for the XDP program's arithmetic with packet pointers.
	XDP    = Need{"af_xdp", []cap.Value{cap.NET_ADMIN, cap.NET_RAW, cap.BPF, cap.PERFMON}}
	Locked = Need{"af_xdp beyond the limit of locked memory", []cap.Value{cap.IPC_LOCK}}
	Owner  = Need{"a socket of another user or group (socket-owner=, socket-group=)", []cap.Value{cap.CHOWN}}
)

// Requirements of an engine's start. The switch also works without them.
var (
	Urgent = Need{"the shortest pause when an engine is replaced", []cap.Value{cap.SYS_NICE}}
	Bound  = Need{"an empty bounding set of the engine", []cap.Value{cap.SETPCAP}}
)

// Needs lists the requirements that the packaged systemd unit meets.
var Needs = []Need{Tap, Namespace, Packet, Whole, XDP, Locked, Owner, Urgent, Bound}

// All returns the capabilities of all requirements in Needs, sorted, each once. The packaged systemd unit
// grants them.
func All() []cap.Value {
	var all []cap.Value
	for _, n := range Needs {
		all = append(all, n.Capabilities...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Name returns the name of a capability as capabilities(7) writes it.
func Name(c cap.Value) string { return strings.ToUpper(c.String()) }

// Names returns the names of capabilities.
func Names(list []cap.Value) []string {
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, Name(c))
	}
	return names
}

// Parse parses a comma-separated list of capabilities, in upper or lower case, with or without the
// prefix "cap_". An empty text gives an empty list.
func Parse(text string) ([]cap.Value, error) {
	list := []cap.Value{}
	for word := range strings.SplitSeq(text, ",") {
		if word == "" && text == "" {
			break
		}
		name := strings.ToLower(word)
		if !strings.HasPrefix(name, "cap_") {
			name = "cap_" + name
		}
		c, err := cap.FromName(name)
		if err != nil {
			return nil, fmt.Errorf("%s: expected capabilities(7), as in net_admin,net_raw", word)
		}
		list = append(list, c)
	}
	return list, nil
}

// Has reports whether this process has a capability.
func Has(c cap.Value) bool {
	has, err := cap.GetProc().GetFlag(cap.Effective, c)
	return err == nil && has
}

// Own returns the capabilities of this process.
func Own() []cap.Value {
	var own []cap.Value
	set := cap.GetProc()
	for c := cap.Value(0); c < cap.MaxBits(); c++ {
		if has, err := set.GetFlag(cap.Effective, c); err == nil && has {
			own = append(own, c)
		}
	}
	return own
}

// User returns the name of the user of this process, or the number of a user without a
// name.
func User() string {
	number := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

// Lack is a capability that this process lacks. The field For has the texts Need.For of the requirements
// that include it.
type Lack struct {
	Capability cap.Value
	For        []string
}

// Missing returns the capabilities in Needs that this process lacks.
func Missing() []Lack {
	var all []Lack
	for _, c := range All() {
		if Has(c) {
			continue
		}
		l := Lack{Capability: c}
		for _, n := range Needs {
			if slices.Contains(n.Capabilities, c) {
				l.For = append(l.For, n.For)
			}
		}
		all = append(all, l)
	}
	return all
}

// Check returns an error if this process lacks a capability of the requirement. The error names the missing
// ones, and says how to give them.
func (n Need) Check() error {
	var missing []cap.Value
	for _, c := range n.Capabilities {
		if !Has(c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	names := strings.Join(Names(missing), " ")
	return fmt.Errorf("%s needs %s, which weftd (user %s) lacks: %s, and restart weftd", n.For, names, User(), give(names))
}

func give(names string) string {
	return fmt.Sprintf("add %s to AmbientCapabilities= and CapabilityBoundingSet= of weftd.service, or to --capabilities", names)
}

// Explain adds advice to err, an EACCES of a socket: either do what the text remedy says, which needs
// no capability, or grant CAP_DAC_OVERRIDE. It returns any other error unchanged, also nil. If the
// process has CAP_DAC_OVERRIDE, it returns every error unchanged.
func Explain(err error, remedy string) error {
	if !errors.Is(err, unix.EACCES) || Has(cap.DAC_OVERRIDE) {
		return err
	}
	return fmt.Errorf("%w for user %s: %s; or %s", err, User(), remedy, give(Name(cap.DAC_OVERRIDE)))
}
