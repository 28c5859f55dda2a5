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
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// A request that is too large for one transaction is applied in several, through a
// journal in etcd:
//
//  1. The store that applies the request writes the key "writer" with the state
//     preparing. As long as this key exists, other stores wait with changes of the
//     declaration, because their transactions require that the key is absent. Bindings
//     continue.
//  2. The store reads the keys that the request concerns and computes the operations.
//     It writes them to the keys journal/<token>/<n>, where each key has one chunk.
//     Each of these transactions requires that the key "writer" is unchanged. A slow
//     store that was taken for dead can thus write nothing more.
//  3. One transaction changes the state in the key "writer" to committed. From now on
//     the request takes effect.
//  4. One transaction for each chunk executes the chunk's operations and increments the
//     number of executed chunks in the key "writer". Any store may execute the next
//     chunk. The transaction requires the known revision of the key, so exactly one
//     store succeeds. The transaction of the last chunk deletes the key "writer" and
//     writes request/<id>.
//
// If the store stops in step 2, another store discards the request after the time
// givenUp, and nothing has changed. While it reads in step 2, it writes the key
// "writer" regularly to show that it has not stopped. If it stops after step 3, another
// store executes the remaining chunks after the time helpAfter. A program that reads etcd directly
// sees the effect of a request chunk by chunk. Follow passes on the effect as a
// whole.

// Time limits of a store that waits for another store's large request, and the limit
// of its size.
const (
	// helpAfter is how long a committed request may make no progress. After that, a
	// waiting store executes the request's remaining chunks.
	helpAfter = 500 * time.Millisecond
	// givenUp is how long a request in preparation may make no progress. After that,
	// a waiting store discards the request.
	givenUp = 3 * time.Second
	// aliveEvery is the time between two writes of the key "writer" by a store that
	// prepares a request.
	aliveEvery = 500 * time.Millisecond
	// maxChunks is the limit of chunks in a request. It protects a store from a
	// damaged journal. A larger request is refused.
	maxChunks = 1 << 20
)

// writer is the value of the key "writer": the state of a large request in progress.
type writer struct {
	Token     string `json:"token"`
	Request   string `json:"request"`
	Committed bool   `json:"committed,omitempty"`
	Chunks    int    `json:"chunks,omitempty"` // number of chunks written to the journal so far
	Next      int    `json:"next,omitempty"`   // index of the first chunk that was not executed yet
	// Step grows with every write of the key, so that no two values are equal.
	Step int `json:"step"`

	mod int64 // revision of the transaction that wrote this value
}

func (w *writer) encode() string {
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // cannot fail: the fields are strings, numbers and bools
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

// decodeChunk decodes the operations of a chunk. The only valid operations are a put
// and a deletion of the key of one object or guard. decodeChunk returns an error for
// anything else.
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
		if !strings.HasPrefix(c.key, guardPrefix) && !slices.ContainsFunc(kinds, func(k kindRow) bool { return strings.HasPrefix(c.key, k.prefix) }) {
			return nil, fmt.Errorf("key %q is no object and no guard", c.key)
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// cut divides changes into chunks. Each chunk fits into one transaction, together with
// the operations that the transaction adds.
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

// The method large applies a request through the journal. It returns the revision at which the request
// took effect.
func (a *applying) large(ctx context.Context) (int64, error) {
	s := a.store
	w, err := a.lock(ctx)
	// The method lock fails with errLost if another store is applying a large request, or if this
	// request has already taken effect.
	if errors.Is(err, errLost) {
		_, done, err := a.readState(ctx, false)
		if err == nil && done == 0 {
			err = errConflict
		}
		return done, err
	}
	if err != nil {
		return 0, err
	}
	var v *view
	var done int64
	err = s.showingLife(ctx, w, func() (err error) {
		v, done, err = a.prepare(ctx, true)
		return err
	})
	if err != nil || done != 0 {
		s.unlock(w)
		return done, err
	}
	chunks := s.cut(v.changes())
	if len(chunks) == 0 {
		chunks = [][]change{nil} // the store needs no change; one transaction records that the request took effect
	}
	if err := a.writeChunks(ctx, w, chunks); err != nil {
		s.unlock(w)
		return 0, err
	}
	return s.roll(ctx, w, chunks)
}

// lock creates the key "writer" for the request. It fails if the key exists.
func (a *applying) lock(ctx context.Context) (*writer, error) {
	w := &writer{Token: rand.Text(), Request: a.id}
	ifs := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(requestKey(a.id)), "=", 0)}
	return w, a.store.step(ctx, w, w, ifs, nil)
}

// showingLife calls fn while the store holds the key "writer". Meanwhile it writes the
// key regularly, which shows other stores that this one is alive. It returns the error
// of fn, or errConflict if the store has lost the key.
func (s *Store) showingLife(ctx context.Context, w *writer, fn func() error) error {
	done, lost := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-done:
				lost <- nil
				return
			case <-time.After(aliveEvery):
			}
			// This write ignores the end of ctx, because its outcome must be known
			// before the next step.
			once, cancel := context.WithTimeout(context.WithoutCancel(ctx), largeTimeout)
			next := *w
			next.Step++
			err := s.step(once, w, &next, nil, nil)
			cancel()
			if err != nil {
				lost <- lostIsConflict(err)
				return
			}
		}
	}()
	err := fn()
	close(done)
	if lost := <-lost; err == nil {
		err = lost
	}
	return err
}

// unlock gives up a request that was not committed and has changed nothing. It deletes
// the key "writer" and the journal, unless another store has changed the key.
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

// writeChunks writes the chunks to the journal. Each transaction has as many as fit.
// The transaction with the last chunk also commits the request.
func (a *applying) writeChunks(ctx context.Context, w *writer, chunks [][]change) error {
	if len(chunks) > maxChunks {
		return refusedf("a request of %d transactions: expected at most %d; split it", len(chunks), maxChunks)
	}
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

// errLost means that another store has changed or deleted the key "writer", which this store had
// written.
var errLost = errors.New("another store has the writer")

// step writes *update to the key "writer", together with further operations, in one transaction. It
// returns errLost if the key no longer has the value *w, or exists although w was never stored. If the
// result of the transaction is unknown, step reads the key to find out whether it took effect. On
// success, step sets *w to *update.
func (s *Store) step(ctx context.Context, w, update *writer, ifs []clientv3.Cmp, ops []clientv3.Op) error {
	ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(writerKey), "=", w.mod))
	then := append(slices.Clip(ops), clientv3.OpPut(writerKey, update.encode()))
	for n := 0; ; n++ {
		r, err := s.commit(ctx, largeTimeout, ifs, then)
		if err == nil && r.Succeeded {
			*w = *update
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
			case now != nil && now.Token == update.Token && now.Step == update.Step:
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

// readWriter returns the value of the key "writer", or nil if the key is absent.
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

// roll executes the remaining chunks of a committed request, and returns the revision at which the
// request took effect. Another store may execute some of them at the same time. If chunks is nil, roll
// reads the chunks from the journal.
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

// rollOnce executes the next chunk of a committed request. After the last chunk it
// returns the request's revision, otherwise 0.
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

// chunk returns the next chunk of a committed request. It takes the chunk from chunks,
// or from the journal if chunks is nil.
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
		return nil, errLost // another store has executed this chunk in the meantime
	}
	changes, err := decodeChunk(kvs[0].Value)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", key, err)
	}
	return changes, nil
}

// requestRevision returns the revision at which the request with this id took effect.
func (s *Store) requestRevision(ctx context.Context, id string) (int64, error) {
	r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(requestKey(id))})
	if err != nil {
		return 0, err
	}
	for _, kv := range r.Responses[0].GetResponseRange().Kvs {
		return kv.ModRevision, nil
	}
	return 0, errConflict // the id has expired, or another store has discarded the request
}

// writerSeen records when this store has first read the present value of the key "writer". All requests
// that wait for the key use this time. Without it, each would measure only its own wait, which may end
// before the time givenUp.
type writerSeen struct {
	mu    sync.Mutex
	mod   int64     // revision of the value
	since time.Time // time at which this store first read the value
}

// idle returns the time since this store first read the value w of the key "writer".
func (o *writerSeen) idle(w *writer) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mod != w.mod {
		o.mod, o.since = w.mod, time.Now()
	}
	return time.Since(o.since)
}

// awaitWriter waits until no large request is in progress. If a request makes no
// progress, awaitWriter completes it if it is committed, and discards it otherwise.
func (s *Store) awaitWriter(ctx context.Context) error {
	for n := 0; ; n++ {
		w, err := s.readWriter(ctx)
		if err != nil || w == nil {
			return err
		}
		switch idle := s.waiting.idle(w); {
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
