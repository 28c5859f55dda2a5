// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// The message budget of a front end. Each message costs up to a millisecond of the
// control process and of the engine's server, which serve all ports. If the budget is
// used up, the session waits before it handles the next message. Status.Throttled
// counts these waits.
const (
	// messageBurst is the largest budget, in messages. QEMU sends about 1,000
	// messages to set up 16 queue pairs.
	messageBurst = 4096
	// messagesPerSecond is the rate at which a message budget grows.
	messagesPerSecond = 200
	// connectCost and startCost are the costs, in messages, of a connection and of a
	// start of the device. Both are high, because they make the engine store or open
	// the whole device.
	connectCost = 32
	startCost   = 8
)

func newBudget() *rate.Limiter { return rate.NewLimiter(messagesPerSecond, messageBurst) }

// Budget returns the number of messages spent and the limit of the front end's
// message budget, and Status.Throttled. Any goroutine may call Budget.
func (s *Session) Budget() (spent, limit int, throttled uint64) {
	limit = s.budget.Burst()
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(max(limit-int(s.budget.Tokens()), 0), limit), limit, s.throttled
}

// spend subtracts messages from the front end's budget. If necessary, it waits until
// the budget has grown enough, or returns ctx's error.
func (s *Session) spend(ctx context.Context, messages int) error {
	if s.budget.AllowN(time.Now(), messages) {
		return nil
	}
	s.mu.Lock()
	s.throttled++
	s.mu.Unlock()
	return s.budget.WaitN(ctx, messages)
}
