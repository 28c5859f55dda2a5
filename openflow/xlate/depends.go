// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"slices"

	"weft/openflow/fdb"
)

// maxAddressRefs is the largest number of addresses that a translation records in Translation.Addresses.
// A translation that uses more addresses counts as dependent on every address.
const maxAddressRefs = 8

// depends records that the translation depends on an address. When the address changes, the control
// process translates the megaflow again.
func (x *xlate) depends(ref fdb.Ref) {
	switch {
	case slices.Contains(x.addresses, ref) || len(x.addresses) == 1 && x.addresses[0] == fdb.AnyRef:
	case ref == fdb.AnyRef || len(x.addresses) == maxAddressRefs:
		x.addresses = append(x.addresses[:0], fdb.AnyRef)
	default:
		x.addresses = append(x.addresses, ref)
	}
}
