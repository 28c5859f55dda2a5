// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
	"weft/internal/atomicfile"
)

// keep saves changes of the state until ctx ends, and saves once more at the end.
func (a *Agent) keep(ctx context.Context) {
	if a.config.File == "" {
		return
	}
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-a.save:
			select {
			case <-ctx.Done():
			case <-time.After(savePause):
			}
		}
		a.mu.Lock()
		message := a.state.message()
		a.mu.Unlock()
		if err := writeState(a.config.File, message); err != nil {
			a.config.Log.Error("what central said cannot be kept", "error", err)
		}
	}
}

// readState returns the saved state, or nil if there is no file.
func readState(file string) (*wire.HostState, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := new(wire.HostState)
	if err := proto.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, and the agent asks central for everything", file, err)
	}
	return m, nil
}

// writeState writes the state and replaces the file atomically.
func writeState(file string, m *wire.HostState) error {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err
	}
	return atomicfile.WriteBytes(file, 0o600, data)
}
