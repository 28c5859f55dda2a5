// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Pauses between two attempts to connect. By default gRPC's grow to 2 minutes: a central would
// not use another one, or its etcd, for as long after they are back.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
	// connectTimeout limits an attempt. If packets are lost, TCP waits longer and longer
	// before it sends its first segment again, so a new attempt is faster.
	connectTimeout = 5 * time.Second
)

// Reconnect returns the option of connections that centrals keep to each other and to etcd. A
// broken connection is open again at most connectTimeout and mostPause after its path is whole.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout,
		Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostPause}})
}
