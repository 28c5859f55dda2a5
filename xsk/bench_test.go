// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"testing"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// These benchmarks measure only the queue, with batches of 32 frames of 128 bytes. A model takes the
// place of the kernel, and all memory is in the CPU's caches.

func benchModel() *model {
	m := newModel(&testing.T{}, 0)
	m.kernelTake(modelRing)
	for _, addr := range m.held {
		*m.rxRing.slot(m.rxRing.producer.Load()) = unix.XDPDesc{Addr: addr + kernelHeadroom, Len: 128}
		m.rxRing.producer.Add(1)
	}
	return m
}

func BenchmarkReceive(b *testing.B) {
	m, batch := benchModel(), new(packet.Batch)
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		if m.rx.Recv(batch) != packet.BatchSize {
			b.Fatal(m.rx.fault)
		}
		m.rx.Release()
		m.rxRing.producer.Add(packet.BatchSize) // the slots still have the same frames
	}
}

func BenchmarkSend(b *testing.B) {
	m, batch := benchModel(), new(packet.Batch)
	for range packet.BatchSize {
		f, _ := batch.Next()
		batch.Commit(f, 128)
	}
	b.ReportAllocs()
	for b.Loop() {
		if m.tx.Send(batch, order[:]) != packet.BatchSize {
			b.Fatal("no frames")
		}
		m.tx.Flush()
		for i := m.txRing.consumer.Load(); i != m.txRing.producer.Load(); i++ {
			*m.completion.slot(i) = m.txRing.slot(i).Addr
		}
		m.completion.producer.Store(m.txRing.producer.Load())
		m.txRing.consumer.Store(m.txRing.producer.Load())
	}
}
