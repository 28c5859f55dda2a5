// SPDX-License-Identifier: Apache-2.0

package workers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"sync"

	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
)

// layoutVersion must change if a value in the workers' memory gets another meaning, or a table
// another size, while all types stay the same.
const layoutVersion = 2

// Layout returns an identifier of the layout of the workers' memory: of all types in it,
// and of the drop reasons, which index counters. Two builds with the same identifier can
// read each other's counters and megaflows.
var Layout = sync.OnceValue(func() string {
	h := sha256.New()
	fmt.Fprintln(h, layoutVersion)
	for reason := range packet.DropReason(packet.DropReasons) {
		fmt.Fprintln(h, reason)
	}
	shm.Describe(h, reflect.TypeFor[datapath.Shared]())
	return hex.EncodeToString(h.Sum(nil)[:16])
})
