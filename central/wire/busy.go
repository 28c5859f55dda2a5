// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// BusyError returns the gRPC error of a central that has too many requests. It tells the client to send
// the request again after the time retryIn, or to another central. Clients that do not know this detail
// repeat the request because of the error's code.
func BusyError(text string, retryIn time.Duration) error {
	s := status.New(codes.Unavailable, text)
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryIn)}); err == nil {
		s = detailed
	}
	return s.Err()
}

// RetryIn returns the time after which a busy central wants the request again, or 0 if the
// error is not a BusyError.
func RetryIn(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if r, ok := detail.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
