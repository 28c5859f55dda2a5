// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// keep writes the state to the file after changes, until ctx ends. Then it writes the
// state once more.
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

// readState returns the state that a file has, or nil if there is no file.
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

// writeState replaces the file in one step. After a crash, the file has either the
// old or the new state.
func writeState(file string, m *wire.HostState) error {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // error ignored: after the rename the temporary file does not exist
	_, err = temp.Write(data)
	if err == nil {
		err = temp.Sync()
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	return err
}
