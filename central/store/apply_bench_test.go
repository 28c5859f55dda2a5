// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft/bench"
)

// BenchmarkPort declares and deletes a port, in two requests.
func BenchmarkPort(b *testing.B) {
	s := testMember(b).Store()
	apply(b, s, setNet("n", 7))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		apply(b, s, setPort(port("p", "n", n)))
		apply(b, s, deletePort("p"))
	}
}

// BenchmarkEtcd measures what a transaction costs etcd alone: the CPU time of three members together.
// A port that comes and goes needs some 18 keys, in one transaction or several. The transactions follow
// each other without pause, so the members' work of an idle cluster adds little.
func BenchmarkEtcd(b *testing.B) {
	c := startCluster(b)
	client := c.clients[c.leader()]
	cpu := func() (sum time.Duration) {
		for _, m := range c.members {
			user, system := bench.CPUTime(m.Process.Pid)
			sum += user + system
		}
		return sum
	}
	for _, keys := range []int{1, 9, 18, 36, 144} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			before := cpu()
			for n := 0; b.Loop(); n++ {
				var ops []clientv3.Op
				for k := range keys {
					key := fmt.Sprintf("%sguard/mac/0123456789abcdef/%06x", Prefix, (n/2*keys+k)%100_000)
					if n%2 == 0 {
						ops = append(ops, clientv3.OpPut(key, "0123456789abcdef"))
					} else {
						ops = append(ops, clientv3.OpDelete(key))
					}
				}
				r, err := client.Txn(context.Background()).If(clientv3.Compare(clientv3.ModRevision(intentKey), "=", 0)).Then(ops...).Commit()
				if err != nil || !r.Succeeded {
					b.Fatal(r, err)
				}
			}
			b.ReportMetric((cpu()-before).Seconds()*1e3/float64(b.N), "CPU-ms/op")
		})
	}
}
