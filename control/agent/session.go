// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
	"weft/control/loop"
)

const (
	// maxMessage limits a hub's message in bytes.
	maxMessage = 4 << 20
	// After aliveEvery without a message, the agent sends a keepalive probe. If the hub
	// does not answer the probe within aliveWithin, the session ends. If the hub has
	// promised regular messages (wire.Welcome), the agent ends a silent session much
	// earlier, see type silence.
	aliveEvery, aliveWithin = 10 * time.Second, 5 * time.Second
	// window is the flow-control window in bytes for the hub's messages. A constant
	// window turns off gRPC's estimate of the bandwidth, which costs two pings for each
	// message.
	window = 1 << 20
	// welcomeWithin is the time limit for a hub's first message.
	welcomeWithin = 5 * time.Second
)

// session follows the hub at an address until the connection fails or ctx ends.
func (a *Agent) session(ctx context.Context, address string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(a.config.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveEvery, Timeout: aliveWithin}))
	if err != nil {
		return fmt.Errorf("central %s: %w", address, err)
	}
	defer conn.Close()
	late := time.AfterFunc(welcomeWithin, stop)
	defer late.Stop()
	stream, err := wire.NewHubClient(conn).Follow(ctx, grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto")}))
	if err != nil {
		return fmt.Errorf("central %s: %w", address, err)
	}
	out := a.begin(address)
	defer a.end(out)
	go write(ctx, stop, stream, out)
	w := &silence{stop: stop, patience: a.patience}
	defer w.end()
	messages, ended := make(chan rawMessage, readAhead), make(chan error, 1)
	go func() { ended <- read(ctx, stream, w, messages) }()
	for m := range messages {
		late.Stop()
		beat, err := a.receive(m, len(messages) > 0)
		if err != nil {
			return fmt.Errorf("central %s: %w", address, err)
		}
		w.promise(beat)
	}
	switch err := <-ended; {
	case w.silent():
		a.patience = min(2*a.patience, mostPatience)
		return fmt.Errorf("central %s: says nothing", address)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("central %s: closed the session", address)
	default:
		return fmt.Errorf("central %s: %w", address, err)
	}
}

func (a *Agent) begin(address string) chan *wire.FromHost {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(chan *wire.FromHost, outbox)
	a.outbox = out
	a.stats.Central = address
	clear(a.attached)
	a.keepUnsettled(time.Now())
	a.questions, a.pulls, a.rechecks = newQuestions(), pulls{}, newRechecks()
	a.state.newSession()
	a.opening = true
	a.backlog = backlog{}
	keys := a.keys()
	for _, key := range keys {
		a.attached[key] = true
	}
	a.send(&wire.FromHost{Message: &wire.FromHost_Hello{Hello: &wire.Hello{Version: a.config.Version,
		Known: a.state.digests(), Ports: keys, Groups: true}}})
	for id, l := range a.state.ports {
		p := l.declared.GetPort()
		switch {
		case !a.attached[id] && !a.attached[p.GetName()]:
			a.send(&wire.FromHost{Message: &wire.FromHost_Detach{Detach: &wire.Detach{Port: id}}})
		case !l.declared.GetBound() && a.heard[l.name]:
			a.send(attachOf(id, true))
		}
	}
	return out
}

func (a *Agent) end(outbox chan *wire.FromHost) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finish(false)
	if a.outbox == outbox {
		a.outbox = nil
	}
}

func write(ctx context.Context, stop context.CancelFunc, stream wire.Hub_FollowClient, outbox <-chan *wire.FromHost) {
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-outbox:
			if !ok {
				return // the queue was full
			}
			if err := stream.Send(m); err != nil {
				return
			}
		}
	}
}

// receive handles a message of the hub. behind means that the next message has already
// arrived. beat is the longest interval between messages that the hub promises from now
// on; 0: unchanged.
func (a *Agent) receive(data rawMessage, behind bool) (beat time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.finish(behind) }()
	a.stats.Received += uint64(len(data))
	a.repeatRechecks()
	f := fields{rest: data}
	for f.next() {
		if f.isBytes(fieldBatch) {
			messages := fields{rest: f.bytes}
			for messages.next() {
				if messages.isBytes(fieldMessages) && err == nil {
					err = a.take(messages.bytes, &beat)
				}
			}
			f.failed = f.failed || messages.failed
			continue
		}
		err = errors.Join(err, a.take(data, &beat)) // a hub that sends no batches
		break
	}
	return beat, errors.Join(err, f.err())
}

// field numbers of central/wire/central.proto
const (
	fieldReset    = 1 // wire.ToHost.reset
	fieldUpdate   = 2 // wire.ToHost.update
	fieldBatch    = 8 // wire.ToHost.batch
	fieldMessages = 1 // wire.Batch.messages
)

// take handles an encoded wire.ToHost that is not a batch of messages.
func (a *Agent) take(data []byte, beat *time.Duration) error {
	f := fields{rest: data}
	f.next()
	switch {
	case f.failed:
		return errDecode
	case f.isBytes(fieldReset):
		r, err := a.decoder.reset(f.bytes)
		if err == nil {
			a.state.reset(r, a.pending)
			a.recheckNet(r.view.GetNet().GetId())
			a.askUnsettled(r.view.GetNet().GetId())
		}
		return err
	case f.isBytes(fieldUpdate):
		u, err := a.decoder.update(f.bytes)
		if err == nil {
			a.state.update(&u, a.pending)
		}
		return err
	}
	message := new(wire.ToHost)
	if err := proto.Unmarshal(data, message); err != nil {
		return err
	}
	a.takeOther(message, beat)
	return nil
}

// takeOther handles all messages except NetReset and NetUpdate.
func (a *Agent) takeOther(message *wire.ToHost, beat *time.Duration) {
	pending := a.pending
	switch m := message.GetMessage().(type) {
	case *wire.ToHost_Welcome:
		a.stats.Connected, a.stats.Trouble = true, ""
		a.config.Log.Info("session with central", "central", a.stats.Central)
		a.state.welcome(m.Welcome, pending)
		*beat = time.Duration(m.Welcome.GetBeatMs()) * time.Millisecond
	case *wire.ToHost_Port:
		for _, p := range m.Port.GetPorts() {
			a.state.setPort(p, a.local(p.GetPort()), pending)
		}
		for _, id := range m.Port.GetRemoved() {
			a.state.removePort(id, pending)
		}
	case *wire.ToHost_Answer:
		a.answer(m.Answer, pending)
		a.backlog.due = true // a frame waits for the answer
	case *wire.ToHost_Refused:
		a.config.Log.Warn("central refuses a port", "port", m.Refused.GetPort(), "why", m.Refused.GetWhy())
	case *wire.ToHost_Revision:
		if a.opening { // the hub has now sent its whole state
			a.opening = false
			a.state.removeUnconfirmed(a.pending)
		}
		a.backlog.complete(m.Revision)
	}
}

// apply passes the collected changes to the switch. It returns the switch's problems in
// one line, or "".
func (a *Agent) apply() (trouble string) {
	if a.pending.empty() {
		return ""
	}
	c := a.pending.changes()
	a.pending = a.pending.next()
	loop.Notify(a.save)
	if err := a.sw.Apply(c); err != nil {
		a.config.Log.Error("the switch refuses what central declares", "error", err)
		a.stats.Trouble = err.Error()
		return err.Error()
	}
	return ""
}
