// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft/central/wire"
)

// maxRevocations limits the stored revocations of certificates, because each central
// has all of them in memory. Further revocations are refused.
const maxRevocations = 10_000

// revocationID returns the id of a revocation. Revocations of the same certificates
// have the same id.
func revocationID(r *wire.Revocation) string {
	if r.GetSerial() != "" {
		return "serial/" + r.GetSerial()
	}
	return "name/" + r.GetRole() + "/" + r.GetName()
}

// Revoke stores a revocation of certificates. It replaces an earlier revocation of the
// same certificates.
func (s *Store) Revoke(ctx context.Context, r *wire.Revocation) error {
	if r.GetSerial() == "" {
		if err := checkWord("the name in the certificate", r.GetName()); err != nil {
			return err
		}
	} else if len(r.GetSerial()) > 40 || strings.Trim(r.GetSerial(), "0123456789abcdef") != "" {
		return refusedf("the serial number %.50q is wrong; expected at most 40 hexadecimal digits, as openssl x509 -serial prints", r.GetSerial())
	}
	value, err := encode(r)
	if err != nil {
		return err
	}
	counted, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(revokedPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())})
	if err != nil {
		return err
	}
	if counted.Responses[0].GetResponseRange().Count >= maxRevocations {
		return refuse(InUse, "there are %d revocations already; undo those of expired certificates", maxRevocations)
	}
	_, err = s.read(ctx, []clientv3.Op{clientv3.OpPut(revokedPrefix+revocationID(r), string(value))})
	return err
}

// Unrevoke deletes a revocation.
func (s *Store) Unrevoke(ctx context.Context, r *wire.Revocation) error {
	deleted, err := s.read(ctx, []clientv3.Op{clientv3.OpDelete(revokedPrefix + revocationID(r))})
	if err == nil && deleted.Responses[0].GetResponseDeleteRange().GetDeleted() == 0 {
		err = refuse(NotFound, "there is no such revocation; list the revocations")
	}
	return err
}
