// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// shutdownPatience is how long "weft shutdown" waits for the processes weftd and engine to end.
const shutdownPatience = 60 * time.Second

const shutdownHelp = `Ends weftd and its engine. No frame is forwarded afterwards: taps are removed, XDP
programs detached, vhost-user front ends disconnected. Ports, flows and tracked connections
are saved, and the next start of weftd restores them.

To restart or upgrade weftd without an outage, end it with SIGTERM (systemctl restart): the
engine then goes on forwarding until the next weftd takes it over.`

func (c *command) shutdownVerb() *cobra.Command {
	return &cobra.Command{
		Use: "shutdown", Short: "end weftd and its engine, and remove the devices of ports", Long: shutdownHelp, Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			ending, err := client.ShutDown()
			if err != nil {
				return err
			}
			if !strings.HasPrefix(c.socket, "vsock:") { // a vsock leads to processes of another machine
				if err := awaitEnd(ending.PID); err != nil {
					return err
				}
			}
			if c.json {
				return c.printJSON(ending)
			}
			_, err = fmt.Fprintf(c.out, "weftd %d and engine %d ended\n", ending.PID, ending.EnginePID)
			return err
		},
	}
}

// awaitEnd waits until weftd, whose process id is pid, has ended. weftd ends after the engine. awaitEnd
// returns an error after shutdownPatience.
func awaitEnd(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // the process has ended already, or is in another PID namespace
	}
	defer unix.Close(fd)
	for end := time.Now().Add(shutdownPatience); ; {
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("weftd %d has not ended after %v: see its log", pid, shutdownPatience)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 && err == nil {
			return nil
		}
	}
}
