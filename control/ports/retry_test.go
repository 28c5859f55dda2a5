// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"slices"
	"testing"

	"weft/engine"
)

// retried is a driver that records whether attach was called with resume.
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

// A port that is tried again resumes at its ring positions only if its device has stayed open.
func TestRetryResumesAnOpenDevice(t *testing.T) {
	ports, configuration := newTestPorts(t)
	ports.vxlanPorts(t, 1)
	tx := configuration.Begin()
	defer tx.Commit()
	p := ports.byNumber[1]
	r := &retried{portDriver: p.driver}
	p.driver = r
	p.fail(errors.New("its engine hung"))
	ports.retryPort(tx, p)
	ports.failPort(tx, p, errors.New("broken"))
	ports.retryPort(tx, p)
	if !slices.Equal(r.resumed, []bool{true, false}) || p.problem.Load() != nil {
		t.Errorf("attached with resume %v, want true and then false", r.resumed)
	}
}
