// SPDX-License-Identifier: Apache-2.0

// Package agent defines the protocol between the lab and a virtual machine: JSON
// lines over the machine's second serial port. One Reply answers each Request.
package agent

// Version is the agent's greeting. Firmware messages on the same port differ from it.
const Version = "weft guest 1"

// Modules is a file in the initramfs: the paths of kernel modules to load, one per
// line.
const Modules = "/modules.list"

// Port is the agent's serial port in the virtual machine.
const Port = "/dev/ttyS1"

// Request asks the agent for one action. Apart from ID, exactly one field is set.
type Request struct {
	ID int `json:"id"` // the Reply has the same ID; starts at 1
	// Run is a command. The reply comes at its end.
	Run []string `json:"run,omitempty"`
	// Spawn is a command. The reply comes at its start.
	Spawn []string `json:"spawn,omitempty"`
	// Reboot restarts the machine, PowerOff turns it off. Neither has a reply.
	Reboot   bool `json:"reboot,omitempty"`
	PowerOff bool `json:"poweroff,omitempty"`
}

// Reply answers the Request with the same ID. The greeting has ID 0 and the Output
// Version.
type Reply struct {
	ID     int    `json:"id"`
	Exit   int    `json:"exit"`            // exit code of the command; -1: not started
	Output string `json:"output"`          // standard output and standard error
	Error  string `json:"error,omitempty"` // reason why the command did not start
}
