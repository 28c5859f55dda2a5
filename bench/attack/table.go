// SPDX-License-Identifier: Apache-2.0

package main

import "weft/vhost/vhosttest"

var guestOptions = vhosttest.Options{Num: 1024}

// attacks has all attacks of the program, in the order in which they are played.
var attacks = func() []*attack {
	var attacks []*attack
	for _, list := range [][]*attack{frontEndAttacks(), chainAttacks(), holeAttacks(), sharedAttacks(), guestAttacks(), spoofAttacks(), ftpAttacks(), fairAttacks(), neighbourAttacks(), netlinkAttacks(), peerAttacks(), clientAttacks(), openflowAttacks(), centralAttacks()} {
		attacks = append(attacks, list...)
	}
	return attacks
}()
