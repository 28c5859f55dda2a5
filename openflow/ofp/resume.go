// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// ResumeRequest is a decoded NXT_RESUME: a paused frame that a controller returns.
type ResumeRequest struct {
	// Metadata has in_port and the other fields that are not in the frame's bytes. The
	// controller may have changed them.
	Metadata     of.Match
	Frame        []byte // part of the request's message
	Continuation []byte // part of the request's message
}

// DecodeResume decodes an NXT_RESUME, which has the properties of the packet_in2 that it
// answers.
func DecodeResume(r *Request) (request ResumeRequest, err error) {
	for b := r.Body; len(b) > 0; {
		kind, body, rest, err := of.CutProperty(b)
		if err != nil {
			return request, err
		}
		b = rest
		switch kind {
		case packetInFrame:
			request.Frame = body
		case packetInMetadata:
			if request.Metadata, err = of.DecodeMetadata(body, r.TLVs); err != nil {
				return request, err
			}
		case packetInContinuation:
			if len(body) < continuationPad {
				return request, coded(of.ErrPropBadLen, "resume: the continuation has a wrong length")
			}
			request.Continuation = body[continuationPad:]
		case packetInLen, packetInBuffer, packetInTable, packetInCookie, packetInReason, packetInUserdata:
		default:
			return request, coded(of.ErrPropBadType, "resume: property %d: expected one of a packet_in2", kind)
		}
	}
	if request.Frame == nil || request.Continuation == nil {
		return request, coded(of.ErrPropBadValue, "resume: expected a frame and a continuation")
	}
	return request, nil
}
