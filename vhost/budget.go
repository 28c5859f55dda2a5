// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Budget of a front end. Its messages cost control and the engine's server, which
// serve all ports, about a millisecond each at most. A session whose front end has
// spent the budget waits before it goes on; other sessions do not. Status.Throttled
// counts these waits.
const (
	// messageBurst is the budget, in messages, of a session that was quiet. QEMU
	// sends about 1,000 messages to set up 16 queue pairs.
	messageBurst = 4096
	// messagesPerSecond is the rate at which the budget fills up again.
	messagesPerSecond = 200
	// connectCost and startCost are the cost, in messages, of a connection and of a
	// start of the device. Both are dear because the engine keeps or opens the whole
	// device.
	connectCost = 32
	startCost   = 8
)

func newBudget() *rate.Limiter { return rate.NewLimiter(messagesPerSecond, messageBurst) }

// spend takes messages from the budget. If the budget is too small it waits until it
// has filled up, or until ctx is done; it then returns ctx's error.
func (s *Session) spend(ctx context.Context, messages int) error {
	if s.budget.AllowN(time.Now(), messages) {
		return nil
	}
	s.mu.Lock()
	s.throttled++
	s.mu.Unlock()
	return s.budget.WaitN(ctx, messages)
}
