// SPDX-License-Identifier: Apache-2.0

package ofp

// replyLimit is the size in bytes at which a multipart reply continues in a new
// message. The last entry of a message may exceed it, up to maxMessageLen.
const replyLimit = 32 << 10

// flagMore is the flag of a multipart message that is not the last one of its request or reply.
const flagMore = 1

// Reply builds a multipart reply. If a message has about replyLimit bytes, the reply continues in another
// one.
type Reply struct {
	request  *Request
	messages [][]byte
	b        []byte
	body     int // length in bytes of the present message's headers
	// Omitted is the number of entries that the reply lacks because one entry alone exceeds a message.
	Omitted int
}

// NewReply begins a multipart reply to a request.
func NewReply(r *Request) *Reply {
	reply := &Reply{request: r}
	reply.begin()
	return reply
}

func (r *Reply) begin() {
	key := r.request.key
	_, kind := multipartType(key.version)
	b := Begin(nil, key.version, kind, r.request.XID)
	number := uint16(key.number)
	if key.class == multipartExperimenter {
		number = 0xffff
	}
	b = be.AppendUint16(be.AppendUint16(b, number), 0)
	if key.version != v10 {
		b = zeros(b, 4)
	}
	if key.class == multipartExperimenter {
		b = be.AppendUint32(be.AppendUint32(b, key.vendor), key.number)
		if key.version == v10 {
			b = zeros(b, 4)
		}
	}
	r.b, r.body = b, len(b)
}

// Add appends one entry to the reply. The argument is a function that appends the encoded entry to a slice.
func (r *Reply) Add(entry func(b []byte) []byte) {
	if len(r.b) > r.body && len(r.b) >= replyLimit {
		r.flush(true)
	}
	before := len(r.b)
	r.b = entry(r.b)
	if len(r.b) <= maxMessageLen {
		return
	}
	one := append([]byte(nil), r.b[before:]...)
	r.b = r.b[:before]
	if before == r.body || len(one)+r.body > maxMessageLen {
		r.Omitted++
		return
	}
	r.flush(true)
	r.b = append(r.b, one...)
}

func (r *Reply) flush(continued bool) {
	if continued {
		r.b[HeaderLen+3] |= flagMore
	}
	r.messages = append(r.messages, End(r.b, 0))
	r.begin()
}

// Take returns the messages that are complete, and removes them from the reply. Add may be called
// afterwards.
func (r *Reply) Take() [][]byte {
	messages := r.messages
	r.messages = nil
	return messages
}

// Messages completes the reply and returns its remaining messages.
func (r *Reply) Messages() [][]byte {
	r.flush(false)
	return r.messages
}
