// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"

	"weft/central/wire"
)

type requestLease struct{}

var errNotYet = errors.New("not implemented")

// Apply changes the intent as a whole or not at all, see wire.ChangeRequest. The
// revision is that of the change; of a known id, that of the first request. A request
// without an id gets one.
func (s *Store) Apply(ctx context.Context, request *wire.ChangeRequest) (int64, error) {
	return 0, errNotYet
}

// Bind binds ports to hosts, many in one transaction. Results are in the order of the
// requests.
func (s *Store) Bind(ctx context.Context, requests []BindRequest) []BindResult { return nil }

// PutStatus stores what hosts report.
func (s *Store) PutStatus(ctx context.Context, status []*wire.HostStatus) error { return errNotYet }

// Follow gives the sink everything and then every change until ctx ends, whose error it
// returns.
func (s *Store) Follow(ctx context.Context, sink Sink) error { return errNotYet }
