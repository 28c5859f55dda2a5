// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// A store applies the requests of its callers in transactions, one after another. Requests that
// arrive during a transaction wait, and take effect together in the next one. The more
// requests arrive, the more of them share the cost of a transaction, which each member of
// etcd writes to its disk. A request that is refused does not affect the others.
//
// A request that only deletes is not urgent. While requests arrive often, it waits a few
// milliseconds for a transaction with others.
//
// The number of waiting requests is limited. Beyond the limit, Apply answers *Busy at once,
// and the caller sends the request again later. Otherwise the queue of an overloaded central
// would grow until callers give up and repeat requests that the queue still has.

// Limits of the queue. At one of them, Apply returns a *Busy.
const (
	maxWaiting      = 1024     // requests
	maxWaitingBytes = 64 << 20 // encoded length of the requests in bytes
	// groupMost limits the requests of one transaction. Together they also take at most half of the
	// operations and of the bytes that etcd accepts in a transaction.
	groupMost = 64
	// deletionWait is the time for which a deletion waits for other requests, if the mean time
	// between two requests is below oftenGap.
	deletionWait = 10 * time.Millisecond
	oftenGap     = 20 * time.Millisecond
	// leastBusy and mostBusy limit the time after which a caller may repeat a request.
	leastBusy, mostBusy = 50 * time.Millisecond, 5 * time.Second
)

// Busy is the error of a request that the store has not accepted, because too many requests
// wait. The request has had no effect.
type Busy struct {
	Waiting int           // requests that wait
	RetryIn time.Duration // time after which the queue probably has room
}

func (b *Busy) Error() string {
	return fmt.Sprintf("this central is busy: %d requests wait; send the request again in %s", b.Waiting, b.RetryIn)
}

// Load has the counters of a store's requests.
type Load struct {
	Waiting      int    // requests that wait for a transaction
	Busy         uint64 // requests that were answered *Busy
	Transactions uint64 // transactions that have applied requests
	Applied      uint64 // requests that these transactions have applied
}

// requests is the queue of a store's requests.
type requests struct {
	mu      sync.Mutex
	waiting []*applying
	bytes   int  // of waiting
	running bool // a goroutine takes requests from the queue
	load    Load
	mean    time.Duration // moving mean of a transaction's time, divided by its requests
	gap     time.Duration // moving mean of the time between two requests, at most a second each
	last    time.Time     // arrival of the newest request
	arrived chan struct{} // wakes run while it delays deletions; nil: run does not wait

	// intent is the revision at which this store has last changed the declaration (the networks, ports,
	// groups and hosts). Only the goroutine of the method run uses it.
	intent int64
}

// Load returns the counters since the start, and the number of requests that wait now.
func (s *Store) Load() Load {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	l := s.requests.load
	l.Waiting = len(s.requests.waiting)
	return l
}

// enqueue appends a request to the queue, or returns a *Busy.
func (q *requests) enqueue(s *Store, a *applying) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.waiting); n >= maxWaiting || n > 0 && q.bytes+a.size > maxWaitingBytes {
		q.load.Busy++
		return &Busy{n, max(leastBusy, min(time.Duration(n)*q.mean, mostBusy)).Round(time.Millisecond)}
	}
	a.arrival = time.Now()
	q.gap += (min(a.arrival.Sub(q.last), time.Second) - q.gap) / 8
	q.last = a.arrival
	q.waiting = append(q.waiting, a)
	q.bytes += a.size
	if q.arrived != nil {
		close(q.arrived)
		q.arrived = nil
	}
	if !q.running {
		q.running = true
		go q.run(s)
	}
	return nil
}

// run applies the requests of the queue, group by group. It returns when the queue is empty.
func (q *requests) run(s *Store) {
	for group := q.next(s); len(group) > 0; group = q.next(s) {
		began := time.Now()
		ctx, cancel := groupContext(group)
		s.applyGroup(ctx, group)
		cancel()
		q.note(time.Since(began) / time.Duration(len(group)))
	}
}

// next returns the requests of the next transaction, or none if the queue is empty. If the queue has
// only deletions, next first waits a few milliseconds for requests that can share the transaction.
func (q *requests) next(s *Store) []*applying {
	for {
		arrived, wait := q.patient(time.Now())
		if wait <= 0 {
			return q.take(s)
		}
		timer := time.NewTimer(wait)
		select {
		case <-arrived:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// patient returns how long the requests in the queue may wait for others to share their transaction.
// The time is 0 unless all of them are deletions. The channel "arrived" is closed when a request
// arrives.
func (q *requests) patient(now time.Time) (arrived <-chan struct{}, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.waiting); n == 0 || n >= groupMost || q.gap >= oftenGap {
		return nil, 0
	}
	for _, a := range q.waiting {
		if !a.onlyDeletes() {
			return nil, 0
		}
	}
	if wait = q.waiting[0].arrival.Add(deletionWait).Sub(now); wait > 0 {
		q.arrived = make(chan struct{})
	}
	return q.arrived, wait
}

func (q *requests) note(duration time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mean += (duration - q.mean) / 8
}

// take removes the requests of the next transaction from the queue, in order of arrival. A request may
// be valid only for one revision of the declaration. It gets a transaction of its own, because an
// earlier change in the same transaction would make it fail.
func (q *requests) take(s *Store) []*applying {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, ops, size := 0, 0, 0
	for n < min(len(q.waiting), groupMost) {
		a := q.waiting[n]
		ops += a.keyCount()
		size += a.size
		if n > 0 && (ops > s.ops/2 || size > s.bytes/2 || a.expected != 0 || q.waiting[0].expected != 0) {
			break
		}
		q.bytes -= a.size
		n++
	}
	group := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil // releases the array
	}
	q.running = n > 0
	return group
}

// groupContext returns a context that ends when the contexts of all requests have ended.
func groupContext(group []*applying) (context.Context, context.CancelFunc) {
	if len(group) == 1 {
		return group[0].ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(group[0].ctx))
	var alive atomic.Int32
	alive.Store(int32(len(group)))
	stops := make([]func() bool, len(group))
	for i, a := range group {
		stops[i] = context.AfterFunc(a.ctx, func() {
			if alive.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// applying is a request that is in the queue or being applied.
type applying struct {
	store    *Store
	ctx      context.Context
	id       string
	objects  []*target
	expected int64
	size     int // encoded length
	arrival  time.Time

	finished chan struct{} // closed when revision and err are set
	revision int64
	err      error
}

func (s *Store) newApplying(ctx context.Context, id string, objects []*target, r *wire.ChangeRequest) *applying {
	return &applying{store: s, ctx: ctx, id: id, objects: objects, expected: r.GetExpected(), size: proto.Size(r),
		finished: make(chan struct{})}
}

func (a *applying) onlyDeletes() bool {
	for _, w := range a.objects {
		if w.message != nil {
			return false
		}
	}
	return len(a.objects) > 0 && a.expected == 0
}

func (a *applying) finish(revision int64, err error) {
	a.revision, a.err = revision, err
	close(a.finished)
}

func (a *applying) isFinished() bool {
	select {
	case <-a.finished:
		return true
	default:
		return false
	}
}

// interrupted is the error of a request whose context ended before its outcome was known.
func (a *applying) interrupted(err error) error {
	return fmt.Errorf("request %s may or may not have had an effect, send it again: %w", a.id, err)
}

// keys returns the keys that the method plan reads for the request. It leaves out the guard keys of the
// names and addresses that the stored objects have now. They are known only after the objects have been
// read.
func (a *applying) keys() []string {
	keys := []string{requestKey(a.id)}
	for _, w := range a.objects {
		keys = append(append(append(append(keys, w.key()), guards(w.message)...), references(w.message)...), namesakes(w.message)...)
	}
	return keys
}

// keyCount returns an estimate of the number of operations and comparisons that the request needs.
func (a *applying) keyCount() (n int) {
	for _, w := range a.objects {
		n += 6 + 2*len(guards(w.message))
	}
	return n
}

// errTooLarge means that the requests of a group do not fit into one transaction.
var errTooLarge = errors.New("the requests are too large for one transaction")

// applyGroup applies requests in one transaction, and repeats it after temporary failures until ctx
// ends. If the transaction is too large, or conflicts again and again with changes by another store,
// applyGroup divides the group. So one request cannot delay all others.
func (s *Store) applyGroup(ctx context.Context, group []*applying) {
	local := s.local
	for n := 0; ; n++ {
		err := s.applyOnce(ctx, group, local, n)
		if group = unfinished(group); len(group) == 0 {
			return
		}
		conflict, large := errors.Is(err, errConflict), errors.Is(err, errTooLarge)
		old := local // the local reads may have been old
		local = false
		switch {
		case err == nil, old && conflict:
		case len(group) > 1 && (large || conflict && n > 1):
			half := len(group) / 2
			s.applyGroup(ctx, group[:half])
			group = group[half:]
		case large:
			s.applyLarge(group[0])
			return
		case !conflict && !temporary(err):
			finishAll(group, func(*applying) error { return explain(err) })
			return
		case ctx.Err() != nil || pause(ctx, n) != nil:
			finishAll(group, func(a *applying) error { return a.interrupted(err) })
			return
		}
	}
}

func unfinished(group []*applying) (list []*applying) {
	for _, a := range group {
		if !a.isFinished() {
			list = append(list, a)
		}
	}
	return list
}

func finishAll(group []*applying, err func(*applying) error) {
	for _, a := range group {
		a.finish(0, err(a))
	}
}

// applyOnce tries to apply requests in one transaction, and finishes those whose outcome is known. If
// "local" is set, the store reads from the etcd member in this process, whose data may be old.
// applyOnce then refuses no request. n is the number of earlier attempts.
func (s *Store) applyOnce(ctx context.Context, group []*applying, local bool, n int) error {
	if len(group) == 1 && len(group[0].objects) > s.ops { // each change has a comparison
		return errTooLarge
	}
	v := s.newView(local)
	keys := []string{writerKey, intentKey}
	for _, a := range group {
		keys = append(keys, a.keys()...)
	}
	if err := v.load(ctx, keys); err != nil {
		return err
	}
	if v.records[writerKey].exists {
		if err := s.awaitWriter(ctx); err != nil {
			return err
		}
		return errConflict
	}
	accepted, bound, err := v.planGroup(ctx, group)
	if err != nil || len(accepted) == 0 {
		return err
	}
	changes := v.changes()
	// Every change of the declaration writes the key "intent". So the transaction can compare this key
	// instead of all keys that were read, which costs each member of etcd less. But the comparison
	// fails after any change by another store. So it is used only if this store has made the last
	// change.
	byIntent := accepted[0].expected != 0 || n == 0 && v.records[intentKey].mod == s.requests.intent
	return s.commitGroup(ctx, accepted, bound, changes, v.unchanged(byIntent), n)
}

// planGroup computes the changes of the requests, in their order. It finishes the requests that fail or
// have already taken effect. It returns the others, for the transaction, and the number of ports that
// they bind.
func (v *view) planGroup(ctx context.Context, group []*applying) (accepted []*applying, bound int, err error) {
	ids := map[string]bool{}
	for _, a := range group {
		if err := a.ctx.Err(); err != nil {
			a.finish(0, a.interrupted(err))
			continue
		}
		if r := v.records[requestKey(a.id)]; r.exists {
			a.finish(r.mod, nil)
			continue
		}
		if ids[a.id] {
			continue // the next attempt finds that the first request of this id has taken effect
		}
		ports, err := v.planRequest(ctx, a)
		var refused *Refused
		switch {
		case errors.As(err, &refused) && v.local: // the next attempt decides
		case err != nil && temporary(err):
			return nil, 0, err
		case err != nil:
			a.finish(0, explain(err))
		default:
			ids[a.id] = true
			bound += ports
			accepted = append(accepted, a)
		}
	}
	return accepted, bound, nil
}

// planRequest adds the writes and deletions of a request to the view. If it returns an error, it has
// removed them again.
func (v *view) planRequest(ctx context.Context, a *applying) (bound int, err error) {
	if err := checkExpected(v, a.expected); err != nil {
		return 0, err
	}
	v.begin()
	if err = v.plan(ctx, a.objects); err == nil {
		bound, err = v.bindWaiting(ctx, a.objects)
	}
	if err != nil {
		v.undo()
	}
	return bound, err
}

// checkExpected returns a *Refused if the declaration has changed after the revision "expected". 0
// accepts any declaration.
func checkExpected(v *view, expected int64) error {
	if r := v.records[intentKey]; expected != 0 && r.mod > expected {
		return refuse(Changed, "the intent has changed since revision %d, in revision %d; read it again and repeat", expected, r.mod)
	}
	return nil
}

// commitGroup executes the transaction of requests that were accepted. n is the number of
// earlier attempts.
func (s *Store) commitGroup(ctx context.Context, accepted []*applying, bound int, changes []change, ifs []clientv3.Cmp, n int) error {
	size := 0
	for _, c := range changes {
		size += c.size()
	}
	compared := 0
	for i := range ifs {
		compared += opBytes(string(ifs[i].KeyBytes()))
	}
	if len(changes)+1+len(accepted) > s.ops || len(ifs) > s.ops || size+compared > s.bytes {
		return errTooLarge
	}
	lease, err := s.requestLease(ctx)
	if err != nil {
		return err
	}
	ops := make([]clientv3.Op, 0, len(changes)+1+len(accepted))
	for _, c := range changes {
		ops = append(ops, c.op())
	}
	if len(changes) > 0 {
		ops = append(ops, clientv3.OpPut(intentKey, accepted[0].id))
	}
	for _, a := range accepted {
		ops = append(ops, clientv3.OpPut(requestKey(a.id), "", clientv3.WithLease(lease)))
	}
	timeout := s.patience(n)
	if size > largeBytes {
		timeout = largeTimeout
	}
	r, err := s.commit(ctx, timeout, ifs, ops)
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		s.forgetLease(lease)
		return errConflict
	case err != nil:
		return err
	case !r.Succeeded:
		return errConflict
	}
	s.boundAtOnce.Add(uint64(bound))
	s.noteApplied(r.Header.Revision, len(accepted), len(changes) > 0)
	for _, a := range accepted {
		a.finish(r.Header.Revision, nil)
	}
	return nil
}

func (s *Store) noteApplied(revision int64, count int, changed bool) {
	q := &s.requests
	if changed {
		q.intent = revision
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.load.Transactions++
	q.load.Applied += uint64(count)
}

// applyLarge applies a request that is too large for one transaction (see journal.go), and repeats
// temporary failures.
func (s *Store) applyLarge(a *applying) {
	for n := 0; ; n++ {
		revision, err := a.large(a.ctx)
		switch {
		case err == nil:
			a.finish(revision, nil)
			s.noteApplied(revision, 1, true)
			return
		case !errors.Is(err, errConflict) && !temporary(err):
			a.finish(0, explain(err))
			return
		case a.ctx.Err() != nil || pause(a.ctx, n) != nil:
			a.finish(0, a.interrupted(err))
			return
		}
	}
}

// undone is the state of a key in a view before a change. The method undo restores it.
type undone struct {
	key    string
	record record
	absent bool // the view had no record of the key
}

// begin makes the view record the earlier state of each key that changes from now on. The method undo
// restores these states.
func (v *view) begin() { v.changed, v.remembers = v.changed[:0], true }

func (v *view) remember(key string) {
	if !v.remembers {
		return
	}
	r := v.records[key]
	if r == nil {
		v.changed = append(v.changed, undone{key: key, absent: true})
		return
	}
	v.changed = append(v.changed, undone{key: key, record: *r})
}

// undo reverts the changes of the view since the last call of begin. Keys that were read in the
// meantime stay in the view.
func (v *view) undo() {
	for i := len(v.changed) - 1; i >= 0; i-- {
		u := v.changed[i]
		if u.absent {
			delete(v.records, u.key)
			continue
		}
		*v.records[u.key] = u.record
	}
	v.changed = v.changed[:0]
}

// unchanged returns etcd comparisons that fail if a key of the view has changed since it was read. If
// byIntent is set, the key "intent" is compared instead of the keys of networks, ports, hosts and
// guards.
func (v *view) unchanged(byIntent bool) []clientv3.Cmp {
	var ifs []clientv3.Cmp
	for k, r := range v.records {
		if r.read && !r.ranged && (byIntent && !declares(k) || !byIntent && k != intentKey) {
			ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(k), "=", r.mod))
		}
	}
	if byIntent {
		return ifs
	}
	for _, p := range v.prefixes {
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(p).WithPrefix(), "<", v.revision+1))
	}
	return ifs
}

// declares reports whether every change of the key also writes the key "intent". A comparison of
// "intent" then covers the key. It returns false for the keys of groups, which are compared themselves.
func declares(key string) bool {
	for _, p := range [...]string{netPrefix, portPrefix, hostPrefix, guardPrefix} {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}
