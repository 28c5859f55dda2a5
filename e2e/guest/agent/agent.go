// SPDX-License-Identifier: Apache-2.0

// Package agent defines the protocol between the lab and a virtual machine: JSON
// lines over the machine's second serial port. One Reply answers each Request.
package agent

// Version is the text with which the agent greets the lab. It differs from messages
// that the firmware writes to the same port.
const Version = "weft guest 1"

// Modules is the path of a file in the initramfs. It lists kernel modules to load, one
// path per line.
const Modules = "/modules.list"

// Port is the device file of the agent's serial port in the virtual machine.
const Port = "/dev/ttyS1"

// Request asks the agent for one action. Apart from ID, exactly one field is set.
type Request struct {
	ID int `json:"id"` // the Reply has the same ID; starts at 1
	// Run is a command to run. The agent replies when the command ends.
	Run []string `json:"run,omitempty"`
	// Spawn is a command to run in the background. The agent replies when the command
	// has started.
	Spawn []string `json:"spawn,omitempty"`
	// Reboot restarts the machine. The agent does not reply.
	Reboot bool `json:"reboot,omitempty"`
}

// Reply answers the Request with the same ID. The agent's greeting is a Reply with ID 0
// and the Output Version.
type Reply struct {
	ID     int    `json:"id"`
	Exit   int    `json:"exit"`            // exit code of the command; -1: not started
	Output string `json:"output"`          // standard output and standard error
	Error  string `json:"error,omitempty"` // reason why the command did not start
}
