// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// A request that does not fit into one transaction goes through the journal:
//
//  1. Its store writes the key writer, which is the lock of large requests, in the
//     state preparing. Transactions that change the declaration compare that this key
//     is absent, and therefore wait. Bindings go on.
//  2. The store reads and plans, and writes the operations to journal/<token>/<n>.
//     Each of these keys has one chunk of operations. Each transaction compares that
//     the key writer has the revision that this store last wrote, so that a store
//     that has lost the lock writes nothing more.
//  3. One transaction sets the state committed. From here on the request takes effect.
//  4. One transaction for each chunk executes the chunk's operations and counts the
//     chunk in the key writer. Every store that sees the key may execute the next
//     chunk: exactly one succeeds, because the transaction compares the key's
//     revision. The last transaction deletes the key writer and writes request/<id>.
//
// If a store stops in step 2, another store removes its lock after givenUp, and
// nothing has changed. If it stops after step 3, another store executes the remaining
// chunks after helpAfter. A reader of etcd sees the effect of a committed request
// chunk by chunk; Follow delays it until the last one.

// Times for which a store waits for another store that holds the lock of large
// requests.
const (
	// helpAfter is the time without progress after which a waiting store executes the
	// remaining chunks of a committed request itself.
	helpAfter = 500 * time.Millisecond
	// givenUp is the time without progress after which a waiting store removes the
	// lock of a request that is not committed.
	givenUp = 10 * time.Second
	// maxChunks is the largest number of chunks that is accepted, in case the journal
	// is damaged.
	maxChunks = 1 << 20
)

// writer is the value of the key writer.
type writer struct {
	Token     string `json:"token"`
	Request   string `json:"request"`
	Committed bool   `json:"committed,omitempty"`
	Chunks    int    `json:"chunks,omitempty"` // written so far
	Next      int    `json:"next,omitempty"`   // the first chunk without effect
	Step      int    `json:"step"`             // makes each value another one

	mod int64 // revision of the key
}

func (w *writer) encode() string {
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return string(b)
}

func decodeWriter(value []byte, mod int64) (*writer, error) {
	w := &writer{mod: mod}
	if err := json.Unmarshal(value, w); err != nil {
		return nil, fmt.Errorf("%s: %w", writerKey, err)
	}
	if w.Chunks < 0 || w.Chunks > maxChunks || w.Next < 0 || w.Next > w.Chunks ||
		w.Committed && w.Next == w.Chunks || checkWord("token", w.Token) != nil || checkWord("request", w.Request) != nil {
		return nil, fmt.Errorf("%s is damaged: %.200q", writerKey, value)
	}
	return w, nil
}

func (w *writer) chunkKey(n int) string { return fmt.Sprintf("%s%s/%08d", journalPrefix, w.Token, n) }

// encodeChunk encodes the operations of one chunk of the journal.
func encodeChunk(changes []change) ([]byte, error) {
	t := &pb.TxnRequest{}
	for _, c := range changes {
		if c.delete {
			t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(c.key)}}})
		} else {
			t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
				RequestPut: &pb.PutRequest{Key: []byte(c.key), Value: c.value}}})
		}
	}
	return encode(t)
}

// decodeChunk decodes a chunk of the journal. It accepts only puts and deletions of
// single objects and guards.
func decodeChunk(value []byte) ([]change, error) {
	t := &pb.TxnRequest{}
	if err := proto.Unmarshal(value, t); err != nil {
		return nil, err
	}
	changes := make([]change, 0, len(t.Success))
	for _, op := range t.Success {
		var c change
		switch {
		case op.GetRequestPut() != nil:
			c = change{key: string(op.GetRequestPut().Key), value: op.GetRequestPut().Value}
		case op.GetRequestDeleteRange() != nil && len(op.GetRequestDeleteRange().RangeEnd) == 0:
			c = change{key: string(op.GetRequestDeleteRange().Key), delete: true}
		default:
			return nil, errors.New("an operation that is neither a put nor a deletion of one key")
		}
		if !slices.ContainsFunc([]string{netPrefix, portPrefix, hostPrefix, bindPrefix, statusPrefix, guardPrefix},
			func(p string) bool { return strings.HasPrefix(c.key, p) }) {
			return nil, fmt.Errorf("key %q is no object and no guard", c.key)
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// cut divides the changes into chunks. The limits of a transaction allow each chunk
// four more operations.
func (s *Store) cut(changes []change) [][]change {
	var chunks [][]change
	for len(changes) > 0 {
		n, size := 0, 0
		for n < len(changes) && n < s.ops-4 && (n == 0 || size+changes[n].size() < s.bytes/2) {
			size += changes[n].size()
			n++
		}
		chunks = append(chunks, changes[:n])
		changes = changes[n:]
	}
	return chunks
}

// large executes a request through the journal.
func (a *applying) large(ctx context.Context) (int64, error) {
	s := a.store
	w, err := a.lock(ctx)
	if errors.Is(err, errLost) { // another store holds the lock, or the request was executed before
		_, done, err := a.readState(ctx, false)
		if err == nil && done == 0 {
			err = errConflict
		}
		return done, err
	}
	if err != nil {
		return 0, err
	}
	v, done, err := a.prepare(ctx, true)
	if err != nil || done != 0 {
		s.unlock(w)
		return done, err
	}
	chunks := s.cut(v.changes())
	if len(chunks) == 0 || len(chunks) > maxChunks {
		s.unlock(w)
		return 0, errConflict // somebody did the same meanwhile
	}
	if err := a.writeChunks(ctx, w, chunks); err != nil {
		s.unlock(w)
		return 0, err
	}
	return s.roll(ctx, w, chunks)
}

// lock takes the key writer.
func (a *applying) lock(ctx context.Context) (*writer, error) {
	w := &writer{Token: rand.Text(), Request: a.id}
	ifs := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(requestKey(a.id)), "=", 0)}
	return w, a.store.step(ctx, w, w, ifs, nil)
}

// unlock releases the lock of large requests, if this store still holds it, and
// removes the request's journal. The request has no effect then.
func (s *Store) unlock(w *writer) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	s.discard(ctx, w)
}

func (s *Store) discard(ctx context.Context, w *writer) {
	_, _ = s.commit(ctx, largeTimeout,
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(writerKey), "=", w.mod)},
		[]clientv3.Op{clientv3.OpDelete(writerKey), clientv3.OpDelete(journalPrefix+w.Token+"/", clientv3.WithPrefix())})
}

// writeChunks writes the chunks to the journal, as many in each transaction as fit.
// The transaction with the last chunk commits the request.
func (a *applying) writeChunks(ctx context.Context, w *writer, chunks [][]change) error {
	var ops []clientv3.Op
	size := 0
	for i, chunk := range chunks {
		value, err := encodeChunk(chunk)
		if err != nil {
			return err
		}
		if len(ops) > 0 && (len(ops)+2 > a.store.ops || size+len(value)+100 > a.store.bytes) {
			next := *w
			next.Chunks, next.Step = i, w.Step+1
			if err := a.store.step(ctx, w, &next, nil, ops); err != nil {
				return lostIsConflict(err)
			}
			ops, size = nil, 0
		}
		ops = append(ops, clientv3.OpPut(w.chunkKey(i), string(value)))
		size += len(value) + 100
	}
	next := *w
	next.Chunks, next.Step, next.Committed = len(chunks), w.Step+1, true
	return lostIsConflict(a.store.step(ctx, w, &next, nil, ops))
}

func lostIsConflict(err error) error {
	if errors.Is(err, errLost) {
		return errConflict
	}
	return err
}

// errLost means that another store has changed or removed the key writer, which is
// the lock of large requests.
var errLost = errors.New("another store has the writer")

// step replaces the value w of the key writer by the value next, and executes the
// operations ops in the same transaction. It does this exactly once: after an attempt
// with an unknown result, step reads the key to see whether the attempt succeeded. On
// success w has the new value. If w and next are the same and ops is nil, step takes
// the lock.
func (s *Store) step(ctx context.Context, w, next *writer, ifs []clientv3.Cmp, ops []clientv3.Op) error {
	ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(writerKey), "=", w.mod))
	then := append(slices.Clip(ops), clientv3.OpPut(writerKey, next.encode()))
	for n := 0; ; n++ {
		r, err := s.commit(ctx, largeTimeout, ifs, then)
		if err == nil && r.Succeeded {
			*w = *next
			w.mod = r.Header.Revision
			return nil
		}
		if err != nil && !temporary(err) {
			return explain(err)
		}
		if err == nil || n > 0 || ctx.Err() == nil {
			now, readErr := s.readWriter(ctx)
			switch {
			case readErr != nil:
				return readErr
			case now != nil && now.Token == next.Token && now.Step == next.Step:
				*w = *now
				return nil
			case err == nil:
				return errLost
			}
		}
		if pause(ctx, n) != nil {
			return fmt.Errorf("etcd does not answer: %w", err)
		}
	}
}

// readWriter returns the value of the key writer, or nil if nobody holds the lock.
func (s *Store) readWriter(ctx context.Context) (*writer, error) {
	r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(writerKey)})
	if err != nil {
		return nil, err
	}
	for _, kv := range r.Responses[0].GetResponseRange().Kvs {
		return decodeWriter(kv.Value, kv.ModRevision)
	}
	return nil, nil
}

// roll executes the remaining chunks of a committed request. If the argument chunks
// is nil, roll reads them from the journal. It returns the revision of the request,
// also if other stores executed the last chunks.
func (s *Store) roll(ctx context.Context, w *writer, chunks [][]change) (int64, error) {
	for n := 0; ; n++ {
		revision, err := s.rollOnce(ctx, w, chunks)
		if err == nil && revision != 0 {
			return revision, nil
		}
		if err == nil {
			n = 0
			continue
		}
		if !temporary(err) && !errors.Is(err, errLost) {
			return 0, explain(err)
		}
		now, readErr := s.readWriter(ctx)
		if readErr != nil {
			return 0, readErr
		}
		if now == nil || now.Token != w.Token {
			return s.requestRevision(ctx, w.Request)
		}
		*w = *now
		if pause(ctx, n) != nil {
			return 0, fmt.Errorf("request %s is committed and will be done: %w", w.Request, err)
		}
	}
}

// rollOnce executes the next chunk. It returns the revision of its transaction if the
// chunk is the last one, otherwise 0.
func (s *Store) rollOnce(ctx context.Context, w *writer, chunks [][]change) (int64, error) {
	chunk, err := s.chunk(ctx, w, chunks)
	if err != nil {
		return 0, err
	}
	next := *w
	next.Next, next.Step = w.Next+1, w.Step+1
	then := make([]clientv3.Op, 0, len(chunk)+4)
	for _, c := range chunk {
		then = append(then, c.op())
	}
	then = append(then, clientv3.OpDelete(w.chunkKey(w.Next)))
	last := next.Next == next.Chunks
	var lease clientv3.LeaseID
	if last {
		if lease, err = s.requestLease(ctx); err != nil {
			return 0, err
		}
		then = append(then, clientv3.OpDelete(writerKey), clientv3.OpPut(intentKey, w.Request),
			clientv3.OpPut(requestKey(w.Request), "", clientv3.WithLease(lease)))
	} else {
		then = append(then, clientv3.OpPut(writerKey, next.encode()))
	}
	r, err := s.commit(ctx, largeTimeout, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(writerKey), "=", w.mod)}, then)
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		s.forgetLease(lease)
		return 0, nil
	case err != nil:
		return 0, err
	case !r.Succeeded:
		return 0, errLost
	case last:
		return r.Header.Revision, nil
	}
	*w = next
	w.mod = r.Header.Revision
	return 0, nil
}

// chunk returns the operations of the next chunk, from the argument chunks or, if it
// is nil, from the journal.
func (s *Store) chunk(ctx context.Context, w *writer, chunks [][]change) ([]change, error) {
	if chunks != nil {
		return chunks[w.Next], nil
	}
	key := w.chunkKey(w.Next)
	r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return nil, err
	}
	kvs := r.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil, errLost // done by another store since
	}
	changes, err := decodeChunk(kvs[0].Value)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", key, err)
	}
	return changes, nil
}

// requestRevision returns the revision of a request that took effect.
func (s *Store) requestRevision(ctx context.Context, id string) (int64, error) {
	r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(requestKey(id))})
	if err != nil {
		return 0, err
	}
	for _, kv := range r.Responses[0].GetResponseRange().Kvs {
		return kv.ModRevision, nil
	}
	return 0, errConflict // expired or another's
}

// awaitWriter waits until nobody holds the lock of large requests. If the holder
// makes no progress, awaitWriter completes its request or removes its lock.
func (s *Store) awaitWriter(ctx context.Context) error {
	var seen int64
	since := time.Now()
	for n := 0; ; n++ {
		w, err := s.readWriter(ctx)
		if err != nil || w == nil {
			return err
		}
		if w.mod != seen {
			seen, since = w.mod, time.Now()
		}
		switch idle := time.Since(since); {
		case w.Committed && idle > helpAfter:
			if _, err := s.roll(ctx, w, nil); err != nil && !errors.Is(err, errConflict) {
				return err
			}
		case !w.Committed && idle > givenUp:
			s.discard(ctx, w)
		}
		if err := pause(ctx, n); err != nil {
			return fmt.Errorf("request %s is in progress: %w", w.Request, err)
		}
	}
}
