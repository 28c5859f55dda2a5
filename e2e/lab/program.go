// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Console returns a Program that prints messages to the console, with the elapsed time.
func Console() Program {
	start := time.Now()
	return Program{Log: func(format string, args ...any) {
		fmt.Printf("[%4.1fs] "+format+"\n", append([]any{time.Since(start).Seconds()}, args...)...)
	}}
}

// Demonstrate is the main function of a demonstration. It calls run, and closes all
// labs afterwards. An interrupt or the time limit ends run.
func Demonstrate(name string, limit time.Duration, run func() error) {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- run() }()

	code := 0
	select {
	case err := <-done:
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			code = 1
		}
	case <-interrupts:
		fmt.Fprintf(os.Stderr, "\n%s: interrupted, cleaning up\n", name)
		code = 130
	case <-time.After(limit):
		fmt.Fprintf(os.Stderr, "%s: not done after %v, cleaning up\n", name, limit)
		code = 1
	}
	signal.Ignore(os.Interrupt) // Ctrl-C must not interrupt the cleanup
	CloseAll()
	os.Exit(code)
}
