// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Pauses between two attempts to connect. gRPC's default pauses grow to 2 minutes: for this time, a
// central would not notice that another central, or its etcd, works again.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
	// connectTimeout limits an attempt. If packets are lost, TCP waits longer and longer
	// before it sends its first segment again, so a new attempt is faster.
	connectTimeout = 5 * time.Second
)

// Reconnect returns the option of connections that centrals keep to each other and to etcd. Once the
// network works again, a broken connection is open within connectTimeout plus mostPause.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout,
		Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostPause}})
}
