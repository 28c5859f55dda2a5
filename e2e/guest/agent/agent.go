// SPDX-License-Identifier: Apache-2.0

// Package agent is what the lab and the program inside the virtual machine say
// to each other over the machine's second serial port: JSON, one message a
// line, a Request answered by one Reply.
package agent

// Version tells apart the greeting of the agent from noise of the firmware.
const Version = "weft guest 1"

// Modules is the file of the initramfs that lists the kernel modules to load,
// one path a line, in order.
const Modules = "/modules.list"

// Port is the serial port of the agent, in the machine.
const Port = "/dev/ttyS1"

// Request asks for one thing: of the fields but ID one is set.
type Request struct {
	ID int `json:"id"` // returned in the Reply; starts at 1
	// Run is a command with its arguments, run until it ends.
	Run []string `json:"run,omitempty"`
	// Spawn is a command with its arguments, started and left to itself.
	Spawn []string `json:"spawn,omitempty"`
	// Reboot restarts the machine as its own operating system would, PowerOff
	// ends it. Neither is answered.
	Reboot   bool `json:"reboot,omitempty"`
	PowerOff bool `json:"poweroff,omitempty"`
}

// Reply answers the Request of the same ID. The greeting after boot is a Reply
// of ID 0 whose Output is Version.
type Reply struct {
	ID     int    `json:"id"`
	Exit   int    `json:"exit"`            // the command's exit code, -1 if it did not start
	Output string `json:"output"`          // standard output and error
	Error  string `json:"error,omitempty"` // why it did not start
}
