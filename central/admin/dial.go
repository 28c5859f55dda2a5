// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"

	"google.golang.org/grpc"
)

// dial connects to another central. Config.Dial keeps the connection for later calls.
func (s *Service) dial(address string) (grpc.ClientConnInterface, error) {
	if s.Dial == nil || address == "" {
		return nil, errors.New("this central has no way to it")
	}
	return s.Config.Dial(address)
}
