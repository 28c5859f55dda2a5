// SPDX-License-Identifier: Apache-2.0

// Package agent defines the protocol between the lab and the program inside a virtual
// machine. Its messages go over the machine's second serial port: JSON, one message
// on each line. One Reply answers each Request.
package agent

// Version is the text of the agent's greeting. It distinguishes the greeting from
// messages of the firmware on the same serial port.
const Version = "weft guest 1"

// Modules is the path of the file in the initramfs that lists the kernel modules to
// load, one path on each line, in order.
const Modules = "/modules.list"

// Port is the device of the agent's serial port inside the virtual machine.
const Port = "/dev/ttyS1"

// Request asks the agent for one action. Apart from ID, exactly one field is set.
type Request struct {
	ID int `json:"id"` // the Reply has the same ID; starts at 1
	// Run is a command with its arguments. The agent replies when the command has
	// ended.
	Run []string `json:"run,omitempty"`
	// Spawn is a command with its arguments. The agent starts the command and replies
	// at once.
	Spawn []string `json:"spawn,omitempty"`
	// Reboot restarts the machine as its operating system would, PowerOff turns it
	// off. Neither request has a reply.
	Reboot   bool `json:"reboot,omitempty"`
	PowerOff bool `json:"poweroff,omitempty"`
}

// Reply answers the Request with the same ID. The greeting after a boot is a Reply
// with ID 0 whose Output is Version.
type Reply struct {
	ID     int    `json:"id"`
	Exit   int    `json:"exit"`            // the command's exit code, or -1 if the command did not start
	Output string `json:"output"`          // the command's standard output and standard error
	Error  string `json:"error,omitempty"` // reason why the command did not start
}
