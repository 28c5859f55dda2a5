// SPDX-License-Identifier: Apache-2.0

package ofp

// replyLimit is the size at which a multipart reply goes on in a further message. The
// last entry may exceed it, up to MaxMessageLen.
const replyLimit = 32 << 10

// flagMore is the flag of a multipart message that another one follows.
const flagMore = 1

// Reply builds the messages of a multipart reply, one for about every replyLimit bytes.
type Reply struct {
	request  *Request
	messages [][]byte
	b        []byte
	body     int // length of the headers
	// Omitted is the number of entries that are too long for a message.
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

// Add appends an entry. The function entry appends it to a []byte.
func (r *Reply) Add(entry func(b []byte) []byte) {
	if len(r.b) > r.body && len(r.b) >= replyLimit {
		r.flush(true)
	}
	before := len(r.b)
	r.b = entry(r.b)
	if len(r.b) <= MaxMessageLen {
		return
	}
	one := append([]byte(nil), r.b[before:]...)
	r.b = r.b[:before]
	if before == r.body || len(one)+r.body > MaxMessageLen {
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

// Take returns the messages that are complete, which further messages follow, and
// removes them from the reply.
func (r *Reply) Take() [][]byte {
	messages := r.messages
	r.messages = nil
	return messages
}

// Messages returns the remaining messages of the reply. It ends the reply.
func (r *Reply) Messages() [][]byte {
	r.flush(false)
	return r.messages
}
