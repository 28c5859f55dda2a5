package vhost

import "weft/packet"

// Offloads implements port.Tx.
func (q *tx) Offloads() packet.Offloads { return 0 }
