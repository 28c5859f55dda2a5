// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Pauses between two attempts to connect. gRPC's default pauses grow to 2 minutes. A central would need
// so long to notice that another central, or etcd, works again.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
	// connectTimeout limits an attempt. If packets are lost, TCP waits longer and longer before it
	// sends the SYN again, so that a new attempt is faster.
	connectTimeout = 5 * time.Second
)

// Reconnect returns the gRPC option for connections between centrals and to etcd. When the network
// works again, a broken connection is open again within connectTimeout plus mostPause.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout,
		Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostPause}})
}
