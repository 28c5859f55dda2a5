// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// This file has the message budget of a front end. Each message costs up to a millisecond of the control
// process and of the engine process, which serve all ports. If the budget is used up, the session waits
// before it handles the next message. Status.Throttled counts these waits.
const (
	// messageBurst is the largest budget of a device of up to 16 queue pairs, in
	// messages. QEMU sends about 1,000 messages to set up 16 queue pairs.
	messageBurst = 4096
	// messageBurstPair is added to messageBurst for each further queue pair.
	messageBurstPair = 64
	// messagesPerSecond is the rate at which a message budget grows.
	messagesPerSecond = 200
	// connectCost and startCost are the parts of the message budget that a connection and a start of the
	// device use up. Both are high, because after a connection the engine stores the whole device, and at a
	// start it opens the whole device.
	connectCost = 32
	startCost   = 8
)

func newBudget(pairs int) *rate.Limiter {
	return rate.NewLimiter(messagesPerSecond, messageBurst+messageBurstPair*max(pairs-16, 0))
}

// Budget returns the spent part and the limit of the front end's message budget, in
// messages. throttled is Status.Throttled. Budget is safe for concurrent use.
func (s *Session) Budget() (spent, limit int, throttled uint64) {
	limit = s.budget.Burst()
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(max(limit-int(s.budget.Tokens()), 0), limit), limit, s.throttled
}

// spend subtracts a number of messages from the front end's budget. If the budget is
// too small, it waits until the budget has grown enough. If ctx ends first, it returns
// the error of ctx.
func (s *Session) spend(ctx context.Context, messages int) error {
	if s.budget.AllowN(time.Now(), messages) {
		return nil
	}
	s.mu.Lock()
	s.throttled++
	s.mu.Unlock()
	return s.budget.WaitN(ctx, messages)
}
