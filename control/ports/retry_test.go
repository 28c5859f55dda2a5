// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"slices"
	"testing"

	"weft/engine"
)

// retried is a driver that records the argument resume of each call of the method
// attach.
type retried struct {
	portDriver
	resumed []bool
}

func (r *retried) attach(resume bool) error {
	r.resumed = append(r.resumed, resume)
	return nil
}

func (r *retried) open(*engine.Kept) error { return nil }

func (r *retried) close() {}

// If a device stayed open when its engine died, the next engine resumes the device's
// rings at their last positions. A device that was opened again has no positions to
// resume.
func TestRetryResumesAnOpenDevice(t *testing.T) {
	ports, change := newTestPorts(t)
	ports.vxlanPorts(t, 1)
	change.Lock()
	defer change.Unlock()
	p := ports.all[1]
	r := &retried{portDriver: p.driver}
	p.driver = r
	p.fail(errors.New("its engine hung"))
	ports.retryPort(p)
	ports.failPort(p, errors.New("broken"))
	ports.retryPort(p)
	if !slices.Equal(r.resumed, []bool{true, false}) || p.problem.Load() != nil {
		t.Errorf("attached with resume %v, want true and then false", r.resumed)
	}
}
