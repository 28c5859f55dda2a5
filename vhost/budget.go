package vhost

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// What a front end may ask of control and of the engine's server, which serve all ports.
// A message costs them about a millisecond at most; whoever sends more than its budget
// waits, in its own session, and is counted (Status.Throttled).
const (
	// messageBurst is the budget of a session that was quiet. QEMU sends about 1,000
	// messages to set up 16 queue pairs.
	messageBurst = 4096
	// messagesPerSecond fill the budget up again.
	messagesPerSecond = 200
	// connectCost and startCost are what a connection and a start of the device count
	// as, in messages: both have the engine keep or open all that there is.
	connectCost = 32
	startCost   = 8
)

func newBudget() *rate.Limiter { return rate.NewLimiter(messagesPerSecond, messageBurst) }

// spend takes messages from the budget, and waits until they are there. The error is
// ctx's.
func (s *Session) spend(ctx context.Context, messages int) error {
	if s.budget.AllowN(time.Now(), messages) {
		return nil
	}
	s.mu.Lock()
	s.throttled++
	s.mu.Unlock()
	return s.budget.WaitN(ctx, messages)
}
