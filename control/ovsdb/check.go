// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"log/slog"
)

// Check reads a database without taking its lock. It returns a line for each row that the switch
// could not put into effect, and for each column that is set but would have no effect. It does not
// find failures that only show when the switch tries, such as a missing device.
func Check(ctx context.Context, target string, certificates Certificates) (findings []string, err error) {
	c := New(Setup{Target: target, Log: slog.New(slog.DiscardHandler)})
	if c.session, err = dial(ctx, target, certificates); err != nil {
		return nil, err
	}
	defer c.session.close()
	defer context.AfterFunc(ctx, c.session.close)()
	if err := c.session.call("get_schema", &c.schema, database); err != nil {
		return nil, err
	}
	if err := c.readRows(); err != nil {
		return nil, err
	}
	return findingsOf(c.rows), nil
}

func findingsOf(t tables) (findings []string) {
	m := wanted(t, "")
	for i := range m.ports {
		if p := &m.ports[i]; p.problem != "" {
			findings = append(findings, "interface "+p.name+": "+p.problem)
		}
	}
	noteIgnored(t, func(subject, reason string) { findings = append(findings, subject+": "+reason) })
	return findings
}
