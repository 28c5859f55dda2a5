// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// This file reads and writes vhost-user messages. A message has three 32-bit words
// (request, flags and size) in the machine's byte order, followed by size bytes of
// payload. The switch is built for little endian machines only. Descriptors come with
// the message as SCM_RIGHTS.

const (
	messageHeaderLen = 12

	flagVersionMask = 3
	flagVersion     = 1
	flagReply       = 1 << 2
	flagNeedReply   = 1 << 3

	regionLen = 32

	// maxMessageRegions and maxMessageFDs are the specification's limits for
	// SET_MEM_TABLE. A message with more descriptors closes the connection.
	maxMessageRegions = 8
	maxMessageFDs     = maxMessageRegions
	maxPayload        = 8 + maxMessageRegions*regionLen

	// messageTimeout limits how long a front end may take to complete a message, or
	// to accept a reply. The connection is closed after that.
	messageTimeout = 5 * time.Second
	// firstMessageTimeout limits how long a front end may take to send its first
	// message. After that, the connection is closed, because it occupies the socket.
	firstMessageTimeout = 30 * time.Second
	// lastReplyTimeout limits how long the end of a session waits for a front end to
	// accept a reply.
	lastReplyTimeout = 100 * time.Millisecond
)

// message is one request with its payload and descriptors. The session closes the descriptors that the
// request's handler leaves in the message.
type message struct {
	request uint32
	flags   uint32
	payload []byte
	fds     []int
	unread  int // number of bytes of the message that are still in the socket, see wire.nextMessage
	send    int // descriptor to send with the reply and then close; 0: none
}

// untaken removes and returns the descriptors of the message that no handler has taken.
// The caller must close them.
func (m *message) untaken() []int {
	var fds []int
	for _, fd := range m.fds {
		if fd >= 0 {
			fds = append(fds, fd)
		}
	}
	if m.send > 0 {
		fds = append(fds, m.send)
	}
	m.fds, m.send = nil, 0
	return fds
}

// takeFD moves the ownership of descriptor number i of the message to the caller.
func (m *message) takeFD(i int) int {
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

func (m *message) u64() uint64 { return binary.LittleEndian.Uint64(m.payload) }

// state decodes the payload "vring state description": the index of a vring, and a number whose
// meaning depends on the request.
func (m *message) state() (index int, num uint32) {
	return int(binary.LittleEndian.Uint32(m.payload)), binary.LittleEndian.Uint32(m.payload[4:])
}

// parseHeader checks a message's header. r is the entry of the variable "table" for the request, and size
// the length of the payload in bytes.
func parseHeader(b *[messageHeaderLen]byte) (m message, r *row, size int, err error) {
	m.request = binary.LittleEndian.Uint32(b[0:])
	m.flags = binary.LittleEndian.Uint32(b[4:])
	n := binary.LittleEndian.Uint32(b[8:])
	if m.request >= uint32(len(table)) || table[m.request].run == nil {
		return m, nil, 0, fmt.Errorf("request %d is unknown", m.request)
	}
	r = &table[m.request]
	switch {
	case m.flags&flagVersionMask != flagVersion:
		return m, r, 0, fmt.Errorf("%s: protocol version %d, expected %d", r.name, m.flags&flagVersionMask, flagVersion)
	case m.flags&flagReply != 0:
		return m, r, 0, fmt.Errorf("%s: is marked as a reply", r.name)
	case !r.fits(n):
		return m, r, 0, fmt.Errorf("%s: payload of %d bytes, expected %s", r.name, n, r.sizeText())
	}
	return m, r, int(n), nil
}

// wire is a connection to a front end. Only the session's goroutine reads and writes it. Any goroutine
// may call interrupt.
type wire struct {
	conn *net.UnixConn
	stop context.Context // done: no more reads of the connection
	// timeout is messageTimeout, or a shorter time in tests.
	timeout time.Duration
	body    [messageHeaderLen + maxPayload]byte
	// oob has room for SCM_MAX_FD (253) descriptors. With a smaller buffer, the kernel would close the
	// surplus descriptors during the read, and a close may block.
	oob [1088]byte
	// waste has descriptors that nobody uses. They wait here until Session.sweep closes them, because a
	// close may block: see Session.dispose.
	waste []int
}

// errQuiet is the error of wire.nextMessage if no message begins within the time limit.
var errQuiet = errors.New("no message")

// nextMessage reads one message. It waits at most quiet for the first byte (0: no limit), and at most
// messageTimeout for each further read.
//
// A message that has arrived completely stays in the socket until the caller calls consume. If this
// process is killed before, the next control process finds the message and answers it. A message that
// arrives in several reads is removed from the socket read by read.
func (w *wire) nextMessage(quiet time.Duration) (message, *row, error) {
	m, r, whole, err := w.peek(quiet)
	if whole || err != nil {
		return m, r, err
	}
	return w.take(quiet)
}

// peek reads a message and leaves it in the socket. isComplete is false if the message has not arrived
// completely.
func (w *wire) peek(quiet time.Duration) (m message, r *row, isComplete bool, err error) {
	n, _, err := w.look(w.body[:messageHeaderLen], nil, quiet)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && w.stop.Err() == nil {
			err = errQuiet
		}
		return m, nil, false, err
	}
	if n < messageHeaderLen {
		return m, nil, false, nil
	}
	var size int
	if m, r, size, err = parseHeader((*[messageHeaderLen]byte)(w.body[:])); err != nil {
		return m, r, false, err
	}
	want := messageHeaderLen + size // a longer read would return descriptors of the next message
	var fds []int
	if n, fds, err = w.look(w.body[:want], w.oob[:], w.timeout); err != nil || n < want {
		w.waste = append(w.waste, fds...)
		return m, r, false, err
	}
	m.payload, m.unread = w.body[messageHeaderLen:want], want
	// The kernel may have returned descriptors of the next message.
	if r.withoutFDs(m.payload) {
		w.waste = append(w.waste, fds...)
		fds = nil
	}
	if len(fds) > r.fds {
		w.waste = append(w.waste, fds...)
		return m, r, false, fmt.Errorf("%s: %d descriptors, expected at most %d", r.name, len(fds), r.fds)
	}
	m.fds = fds
	return m, r, true, nil
}

// look copies up to len(b) bytes from the socket without removing them. If oob is not
// empty, it returns duplicates of the descriptors that come with these bytes.
func (w *wire) look(b, oob []byte, timeout time.Duration) (n int, fds []int, err error) {
	if err := w.deadline(timeout); err != nil {
		return 0, nil, err
	}
	raw, err := w.conn.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	var oobn, flags int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, failed = unix.Recvmsg(int(fd), b, oob, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, nil, err
	}
	if n == 0 {
		return 0, nil, io.EOF
	}
	if oob == nil {
		return n, nil, nil
	}
	if err = takeRights(oob[:oobn], &fds); err == nil && (flags&unix.MSG_CTRUNC != 0 || len(fds) > maxMessageFDs) {
		err = fmt.Errorf("more than %d descriptors in one message", maxMessageFDs)
	}
	return n, fds, err
}

// consume removes a message, which peek has returned, from the socket. The descriptors that peek returned
// with it stay open.
func (w *wire) consume(m *message, r *row) error {
	var waste [messageHeaderLen + maxPayload]byte
	withoutFDs := r.withoutFDs(m.payload)
	for m.unread > 0 {
		if err := w.deadline(w.timeout); err != nil {
			return err
		}
		n, _, flags, _, err := w.conn.ReadMsgUnix(waste[:m.unread], nil)
		if err != nil {
			return err
		}
		if withoutFDs && flags&unix.MSG_CTRUNC != 0 {
			return errors.New("descriptors came, expected none")
		}
		m.unread -= n
	}
	return nil
}

// take reads a message in several reads, each of which removes its bytes from the socket.
func (w *wire) take(quiet time.Duration) (message, *row, error) {
	var head [messageHeaderLen]byte
	var fds []int
	fail := func(err error) (message, *row, error) {
		w.waste = append(w.waste, fds...)
		return message{}, nil, err
	}
	n, err := w.read(head[:], quiet, &fds)
	if err != nil {
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && w.stop.Err() == nil {
			err = errQuiet
		}
		return fail(err)
	}
	if err := w.readRest(head[n:], &fds); err != nil {
		return fail(fmt.Errorf("header: %w", err))
	}
	m, r, size, err := parseHeader(&head)
	if err != nil {
		return fail(err)
	}
	m.payload = w.body[:size]
	if err := w.readRest(m.payload, &fds); err != nil {
		return fail(fmt.Errorf("%s: payload: %w", r.name, err))
	}
	if len(fds) > r.fds {
		return fail(fmt.Errorf("%s: %d descriptors, expected at most %d", r.name, len(fds), r.fds))
	}
	m.fds = fds
	return m, r, nil
}

func (w *wire) readRest(b []byte, fds *[]int) error {
	for len(b) > 0 {
		n, err := w.read(b, w.timeout, fds)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("stalled for %v", w.timeout)
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// read reads up to len(b) bytes, and appends the descriptors that come with them to
// fds.
func (w *wire) read(b []byte, timeout time.Duration, fds *[]int) (int, error) {
	if err := w.deadline(timeout); err != nil {
		return 0, err
	}
	n, oobn, flags, _, err := w.conn.ReadMsgUnix(b, w.oob[:])
	if errors.Is(err, io.EOF) {
		return 0, io.EOF // readRest compares the error with ==
	}
	if err != nil {
		return 0, err
	}
	if err := takeRights(w.oob[:oobn], fds); err != nil {
		return n, err
	}
	if flags&unix.MSG_CTRUNC != 0 || len(*fds) > maxMessageFDs {
		return n, fmt.Errorf("more than %d descriptors in one message", maxMessageFDs)
	}
	return n, nil
}

// deadline sets the time limit of the next read; 0: no limit. It fails once w.stop is
// done.
func (w *wire) deadline(timeout time.Duration) error {
	deadline := time.Time{}
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := w.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	// w.stop must be checked after the call above. The call may have overwritten the deadline that
	// interrupt has set when w.stop ended.
	return w.stop.Err()
}

// takeRights appends the descriptors of a socket control message to fds.
func takeRights(oob []byte, fds *[]int) error {
	if len(oob) == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("control message: %w", err)
	}
	for i := range messages {
		rights, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not SCM_RIGHTS, for example credentials: no descriptor to close
		}
		*fds = append(*fds, rights...)
	}
	return nil
}

// reply sends the answer to request m, with the descriptor m.send if there is one.
func (w *wire) reply(m *message, payload []byte) error {
	b := binary.LittleEndian.AppendUint32(nil, m.request)
	b = binary.LittleEndian.AppendUint32(b, flagVersion|flagReply)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err
	}
	if w.stop.Err() != nil { // the call above may have overwritten the deadline that interrupt has set
		w.boundReply()
	}
	var rights []byte
	if m.send > 0 {
		rights = unix.UnixRights(m.send)
	}
	_, _, err := w.conn.WriteMsgUnix(append(b, payload...), rights, nil)
	return err
}

// interrupt aborts a read that waits for a message, and limits the write of a reply to
// lastReplyTimeout. The caller must cancel w.stop first.
func (w *wire) interrupt() {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	w.boundReply()
}

// boundReply limits the write of a reply to lastReplyTimeout. The write is not aborted
// at once: the request is already removed from the socket, so the next control process
// could not answer it.
func (w *wire) boundReply() { _ = w.conn.SetWriteDeadline(time.Now().Add(lastReplyTimeout)) }

func u64Payload(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
