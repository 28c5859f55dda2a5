// SPDX-License-Identifier: Apache-2.0

package ofproto

// Finished is a flow whose fin_timeout applies because a matching frame had a TCP FIN or RST. Idle and Hard
// are its new timeouts in seconds; 0: unchanged.
type Finished struct {
	Rule       *Rule
	Idle, Hard uint16
}

// ReduceTimeouts sets the flow's timeouts to Idle and Hard if these are shorter. It reports whether a
// timeout has changed. It needs exclusive access to the tables.
func (f *Finished) ReduceTimeouts() bool {
	r := f.Rule
	idle, hard := r.IdleTimeout, r.HardTimeout
	r.IdleTimeout, r.HardTimeout = reduced(idle, f.Idle), reduced(hard, f.Hard)
	return r.IdleTimeout != idle || r.HardTimeout != hard
}

// reduced returns the shorter of two timeouts in seconds. A value of 0 means no timeout.
func reduced(timeout, limit uint16) uint16 {
	if limit == 0 || timeout != 0 && timeout < limit {
		return timeout
	}
	return limit
}
