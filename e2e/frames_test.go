// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Addresses of test frames. No host has these addresses.
const (
	craftedSrcMAC = "02:00:00:00:0c:01"
	craftedDstMAC = "02:00:00:00:0c:02"
	craftedSrcIP  = "10.0.9.1"
	craftedDstIP  = "10.0.9.2"
)

func crafted(kind layers.EthernetType) *layers.Ethernet {
	src, _ := net.ParseMAC(craftedSrcMAC)
	dst, _ := net.ParseMAC(craftedDstMAC)
	return &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: kind}
}

// udpFrame returns an Ethernet frame with a UDP datagram, of size bytes in all.
func udpFrame(t *testing.T, dstPort, size int) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
		SrcIP: net.ParseIP(craftedSrcIP), DstIP: net.ParseIP(craftedDstIP)}
	udp := &layers.UDP{SrcPort: 4000, DstPort: layers.UDPPort(dstPort)}
	udp.SetNetworkLayerForChecksum(ip)
	payload := gopacket.Payload(bytes.Repeat([]byte("weft"), size/4+1)[:size-14-20-8])
	return serialize(t, crafted(layers.EthernetTypeIPv4), ip, udp, payload)
}

func tagged(frame []byte, tci uint16) []byte {
	tag := []byte{0x81, 0x00, byte(tci >> 8), byte(tci)}
	return append(append(append([]byte{}, frame[:12]...), tag...), frame[12:]...)
}

func serialize(t *testing.T, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, options, list...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func udpFrameFrom(t *testing.T, mac string, dstPort int) []byte {
	t.Helper()
	src, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	frame := udpFrame(t, dstPort, 80)
	copy(frame[6:12], src)
	copy(frame[:6], []byte{2, 0, 0, 0, 0x0c, 9})
	return frame
}
