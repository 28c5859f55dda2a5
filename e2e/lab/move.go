// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

const moveLimit = 60 * time.Second

func (vm *VM) qmp() string { return filepath.Join(vm.host.lab.Dir, vm.Name+".qmp") }

// Move migrates a running virtual machine to another host. The new machine has the name
// and socket in c. Afterwards vm has ended, and the returned VM continues.
func (vm *VM) Move(to *Host, c VMConfig) *VM {
	to.lab.T.Helper()
	c.incoming = filepath.Join(to.lab.Dir, c.Name+".incoming")
	os.Remove(c.incoming)
	accel, _ := to.lab.Accelerator()
	moved, err := to.launch(c, accel)
	if err == nil {
		err = vm.migrate(c.incoming)
	}
	if err != nil {
		to.lab.T.Fatalf("%s: move to %s: %v%s%s", vm.Name, to.Name, err, vm.troubles(), moved.troubles())
	}
	vm.Kill()
	moved.lastID = vm.lastID // replies to requests before the move may still arrive
	return moved
}

func (vm *VM) migrate(path string) error {
	conn, err := net.Dial("unix", vm.qmp())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(moveLimit)); err != nil {
		return err
	}
	q := qmpClient{json.NewEncoder(conn), json.NewDecoder(conn)}
	if _, err := q.call("qmp_capabilities", nil); err != nil {
		return err
	}
	for range 500 { // wait until the destination listens
		if _, err = os.Stat(path); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := q.call("migrate", map[string]any{"uri": "unix:" + path}); err != nil {
		return err
	}
	for {
		var status struct{ Status, ErrorDesc string }
		answer, err := q.call("query-migrate", nil)
		if err == nil {
			err = json.Unmarshal(answer, &status)
		}
		switch {
		case err != nil:
			return err
		case status.Status == "completed":
			return nil
		case status.Status == "failed" || status.Status == "cancelled":
			return fmt.Errorf("migration %s: %s", status.Status, answer)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// qmpClient is a client of QMP, QEMU's machine protocol.
type qmpClient struct {
	encoder *json.Encoder
	decoder *json.Decoder
}

func (q qmpClient) call(command string, arguments map[string]any) (json.RawMessage, error) {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := q.encoder.Encode(request); err != nil {
		return nil, err
	}
	for { // skips QEMU's greeting and events
		var answer struct {
			Return json.RawMessage
			Error  json.RawMessage
		}
		if err := q.decoder.Decode(&answer); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		if answer.Error != nil {
			return nil, errors.New(command + ": " + string(answer.Error))
		}
		if answer.Return != nil {
			return answer.Return, nil
		}
	}
}
