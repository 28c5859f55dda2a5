// SPDX-License-Identifier: Apache-2.0

package flowtable

// SampleTag describes a sampled frame to the control process. It is the field U64 of an OpSample, and
// the worker passes it to the control process with the copy of the frame.
type SampleTag struct {
	Exporter uint16 // datapath port number of the exporter
	// Output is the datapath port number to which the frame is sent; 0: to none, to several, or unknown.
	Output  uint16
	Outputs uint8 // number of ports to which the frame is sent; 255: 255 or more
	Egress  bool  // the frame leaves through Output. Otherwise it arrives.
	// Unknown means that the frame is looked up again, which may add outputs.
	Unknown bool
}

// Word encodes the tag as one word. TagOf decodes it.
func (t SampleTag) Word() uint64 {
	word := uint64(t.Exporter) | uint64(t.Output)<<16 | uint64(t.Outputs)<<32
	if t.Egress {
		word |= 1 << 40
	}
	if t.Unknown {
		word |= 1 << 41
	}
	return word
}

// TagOf returns the tag that the method Word has encoded.
func TagOf(word uint64) SampleTag {
	return SampleTag{Exporter: uint16(word), Output: uint16(word >> 16), Outputs: uint8(word >> 32), Egress: word>>40&1 != 0, Unknown: word>>41&1 != 0}
}
