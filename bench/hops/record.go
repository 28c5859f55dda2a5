// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tracefs is the directory with the control files of the kernel's tracer.
const tracefs = "/sys/kernel/tracing"

// bufferKB is the size in KiB of each CPU's trace buffer. It is enough for about half a
// million calls.
const bufferKB = "32768"

// Record runs a command, and writes a function_graph trace of the named kernel
// functions to file. It returns an error if the machine's tracer is already in use.
func Record(file string, functions, command []string) (err error) {
	tracers, err := os.ReadFile(filepath.Join(tracefs, "available_tracers"))
	if err != nil {
		return fmt.Errorf("no tracer: %w (as root, try: mount -t tracefs tracefs %s)", err, tracefs)
	}
	if !strings.Contains(" "+string(tracers)+" ", "function_graph") {
		return fmt.Errorf("this kernel has no function_graph, only %s; perf's call graphs can be read as well", strings.TrimSpace(string(tracers)))
	}
	if now, _ := os.ReadFile(filepath.Join(tracefs, "current_tracer")); strings.TrimSpace(string(now)) != "nop" {
		return fmt.Errorf("the tracer is in use: %s", strings.TrimSpace(string(now)))
	}
	defer func() {
		err = errors.Join(err, set("tracing_on", "1"), set("current_tracer", "nop"), set("set_graph_function", ""))
	}()
	for _, s := range [][2]string{{"tracing_on", "0"}, {"buffer_size_kb", bufferKB}, {"set_graph_function", strings.Join(functions, "\n")},
		{"current_tracer", "function_graph"}, {"trace", ""}, {"tracing_on", "1"}} {
		if err := set(s[0], s[1]); err != nil {
			return err
		}
	}
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err := errors.Join(err, set("tracing_on", "0")); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
	}
	trace, err := os.ReadFile(filepath.Join(tracefs, "trace"))
	if err != nil {
		return err
	}
	return os.WriteFile(file, trace, 0o644)
}

func set(file, value string) error {
	if err := os.WriteFile(filepath.Join(tracefs, file), []byte(value+"\n"), 0); err != nil {
		return fmt.Errorf("tracer: %q into %w", value, err)
	}
	return nil
}
