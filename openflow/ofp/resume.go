// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// ResumeRequest is a decoded NXT_RESUME. With it, a controller returns a frame whose translation was paused.
type ResumeRequest struct {
	// Metadata has the fields that are not in the frame's bytes, such as in_port and registers. The controller
	// may have changed them.
	Metadata     of.Match
	Frame        []byte // part of the request's message
	Continuation []byte // part of the request's message
}

// DecodeResume decodes an NXT_RESUME. It has the same properties as the packet_in2 with which the controller
// got the frame.
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
