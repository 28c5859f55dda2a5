// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/bench/traffic"
	"weft/cmd/exit"
)

const benchServerHelp = `Answers weft bench client, several clients at a time, until Ctrl-C.

Data takes the path of the client's connection, on ports that the system chooses.
With --raw LINK the server also serves raw frames. LINK is a device, or the path of
the socket of a switch's vhost-user port, whose guest the server then is.
A client with --from asks the server to be a client itself. Over vsock and unix
sockets the server always does so, over the network only with --orders.`

func (c *command) benchServerVerb() *cobra.Command {
	var listen []string
	var port uint16
	server := &traffic.Server{}
	verb := &cobra.Command{Use: "server", Short: "answer weft bench client", Long: benchServerHelp, Args: words(0, 0)}
	verb.Flags().Uint16VarP(&port, "port", "p", traffic.DefaultPort, "TCP port to listen on")
	verb.Flags().StringArrayVar(&listen, "listen", nil, "address to listen on instead: ADDRESS:PORT, unix:PATH or vsock:PORT; may be repeated")
	verb.Flags().StringVar(&server.Link, "raw", "", "serve raw frames on this device, or vhost-user socket (with a slash)")
	verb.Flags().BoolVar(&server.Orders, "orders", false, "be a client if a peer asks over the network")
	verb.RunE = func(cmd *cobra.Command, _ []string) error {
		if server.Link != "" {
			if err := traffic.CheckLink(server.Link); err != nil {
				return exit.Usagef("--raw: %v", err)
			}
		}
		if len(listen) == 0 {
			listen = []string{":" + strconv.Itoa(int(port))}
		} else if cmd.Flags().Changed("port") {
			return exit.Usagef("-p and --listen: expected one of them")
		}
		server.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		return serveTraffic(cmd.ErrOrStderr(), server, listen)
	}
	return verb
}

func serveTraffic(errs io.Writer, server *traffic.Server, listen []string) error {
	ctx, stop := untilSignal()
	defer stop()
	ended := make(chan error, len(listen))
	for _, address := range listen {
		l, err := traffic.Listen(address)
		if err != nil {
			return exit.Usagef("listen: %v", err)
		}
		defer l.Close()
		fmt.Fprintln(errs, "listening on", l.Addr())
		go func() { ended <- server.Serve(ctx, l) }()
	}
	for range listen {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

const benchClientHelp = `Measures against weft bench server at HOST: amount, rate, loss and latency.

  weft bench client HOST                      one TCP stream, 10 s
  weft bench client HOST -u -b 1G -P 4        four UDP streams of 1 Gbit/s each
  weft bench client HOST -u --size imix -b 0  UDP frames of mixed sizes, no rate limit
  weft bench client HOST -R                   the server sends
  weft bench client HOST --rr                 requests and responses, one at a time
  weft bench client HOST --crr                a connection for each request
  weft bench client HOST --raw eth0 --rate 100000
                                              raw frames; the server needs --raw, too
  weft bench client HOST --raw /run/weft/vm1.sock
                                              as the guest of a vhost-user port
  weft bench client HOST --from vsock:3:5210  from the server in the guest of that CID

HOST may be HOST:PORT, unix:PATH or vsock:CID:PORT. unix and vsock carry raw
frames' measurements and the requests of --from, but no TCP and UDP streams. Raw
frames are UDP between 198.18.0.1 and 198.18.0.2; --flows varies their ports. Frame
sizes do not include the Ethernet checksum.

Frames have numbers and times, so the counts of lost, reordered and duplicate frames
are exact. The one-way latency is exact if both ends are on one machine. Otherwise
the ends compare their clocks first, and the result shows the error. With a rate,
the latency of a request counts from the time at which it was due.

Ctrl-C ends the measurement and prints what was measured until then; a second one
ends the client at once.`

type benchClient struct {
	traffic.Client
	spec                  traffic.Spec
	udp, rr, crr          bool
	bitrate, length, size string
	buffer                string
	port                  uint16
	interval              float64
}

func (c *command) benchClientVerb() *cobra.Command {
	b := &benchClient{}
	verb := &cobra.Command{Use: "client HOST", Short: "measure against weft bench server", Long: benchClientHelp, Args: words(1, 1)}
	f := verb.Flags()
	f.BoolVarP(&b.udp, "udp", "u", false, "UDP instead of TCP")
	f.StringVar(&b.Link, "raw", "", "raw frames on this device, or vhost-user socket (with a slash)")
	f.BoolVar(&b.rr, "rr", false, "requests and responses")
	f.BoolVar(&b.crr, "crr", false, "a connection for each request, over TCP")
	f.StringVarP(&b.bitrate, "bitrate", "b", "", "bits a second of each stream, with K, M or G; 0: no limit (default: 1M for UDP and raw streams)")
	f.Float64Var(&b.spec.PerSecond, "rate", 0, "frames, blocks or requests a second of each stream; 0: no limit")
	f.StringVarP(&b.length, "length", "l", "", "bytes of a block (TCP), datagram or request, with K or M")
	f.StringVar(&b.size, "size", "", "bytes of a frame (UDP, raw): 64, 1514, 64:7,590:4,1514:1 or imix (the same)")
	f.IntVar(&b.spec.Response, "response", 0, "bytes of a response; 0: as long as the request")
	f.IntVarP(&b.spec.Streams, "parallel", "P", 1, "number of streams")
	f.Float64VarP(&b.spec.Seconds, "time", "t", 10, "seconds to measure")
	f.Float64VarP(&b.spec.Warmup, "warmup", "O", 0, "seconds of warm-up before the measurement")
	f.Uint64VarP(&b.spec.Count, "count", "k", 0, "end each stream after this number of blocks, frames or requests")
	f.BoolVarP(&b.spec.Reverse, "reverse", "R", false, "the server sends")
	f.IntVar(&b.spec.Flows, "flows", 1, "number of UDP port pairs of raw frames")
	f.StringVarP(&b.buffer, "window", "w", "", "bytes of socket buffers, with K or M")
	f.Float64VarP(&b.interval, "interval", "i", 1, "seconds between lines of progress; 0: none")
	f.Uint16VarP(&b.port, "port", "p", traffic.DefaultPort, "the server's port")
	f.StringVar(&b.From, "from", "", "make this server the client; syntax as for HOST")
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		if err := b.read(cmd, args[0]); err != nil {
			return err
		}
		return c.measureTraffic(cmd.ErrOrStderr(), b)
	}
	return verb
}

// read sets the measurement's settings from the options and the argument. It returns a usage error if
// they contradict each other.
func (b *benchClient) read(cmd *cobra.Command, host string) error {
	switch {
	case b.udp && b.Link != "":
		return exit.Usagef("-u and --raw: expected one of them")
	case b.rr && b.crr:
		return exit.Usagef("--rr and --crr: expected one of them")
	case b.length != "" && b.size != "":
		return exit.Usagef("-l and --size: expected one of them")
	case !(b.interval >= 0 && b.interval < 1e6):
		return exit.Usagef("-i: %g; expected a number of seconds", b.interval)
	}
	if err := b.readKind(); err != nil {
		return err
	}
	if err := b.readAmounts(cmd.Flags().Changed("rate")); err != nil {
		return err
	}
	if err := b.spec.Check(); err != nil {
		return exit.Usagef("%v", err)
	}
	b.Every = time.Duration(b.interval * float64(time.Second))
	return b.readServer(host, cmd.Flags().Changed("port"))
}

// readKind sets the protocol (TCP, UDP or raw frames) and the mode of the measurement.
func (b *benchClient) readKind() error {
	s := &b.spec
	s.Protocol, s.Mode = traffic.TCP, traffic.Stream
	if b.udp {
		s.Protocol = traffic.UDP
	}
	if b.Link != "" {
		s.Protocol = traffic.Raw
		if err := traffic.CheckLink(b.Link); err != nil && b.From == "" {
			return exit.Usagef("--raw: %v", err)
		}
	}
	if b.rr {
		s.Mode = traffic.Request
	} else if b.crr {
		s.Mode = traffic.Connect
	}
	return nil
}

// readAmounts sets the bit rate, the sizes and the socket's buffer. "rate" is true if the option --rate was
// given.
func (b *benchClient) readAmounts(rate bool) (err error) {
	s := &b.spec
	if b.bitrate == "" && s.Protocol != traffic.TCP && s.Mode == traffic.Stream && !rate {
		b.bitrate = "1M"
	}
	if s.BitsPerSecond, err = quantity(b.bitrate, 1000); err != nil {
		return exit.Usagef("-b: %v", err)
	}
	length, err := quantity(b.length, 1024)
	if err != nil {
		return exit.Usagef("-l: %v", err)
	}
	if length > 0 {
		s.Sizes = traffic.Mix{{Size: int(length), Count: 1}}
	}
	buffer, err := quantity(b.buffer, 1024)
	if err != nil {
		return exit.Usagef("-w: %v", err)
	}
	s.SocketBuffer = int(buffer)
	if b.size == "" {
		return nil
	}
	mix, err := traffic.ParseMix(b.size)
	if err != nil {
		return exit.Usagef("--size: %v", err)
	}
	if s.Protocol == traffic.Raw {
		s.Sizes = mix
	} else {
		s.FrameSizes = mix
	}
	return nil
}

// readServer sets the server's address. "port" is true if the option -p was given.
func (b *benchClient) readServer(host string, port bool) error {
	for _, address := range []string{host, b.From} {
		if err := traffic.CheckPort(address); err != nil {
			return exit.Usagef("%v", err)
		}
	}
	b.Server = host
	if port {
		b.Server = host + ":" + strconv.Itoa(int(b.port))
		if strings.Contains(host, ":") {
			b.Server = "[" + strings.Trim(host, "[]") + "]:" + strconv.Itoa(int(b.port))
		}
	}
	return nil
}

func quantity(text string, unit float64) (float64, error) {
	if text == "" {
		return 0, nil
	}
	factor := 1.0
	digits := text
	if i := strings.IndexByte("KMG", text[len(text)-1]&^0x20); i >= 0 {
		digits = text[:len(text)-1]
		for range i + 1 {
			factor *= unit
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(v >= 0 && v*factor < 1e15) {
		return 0, fmt.Errorf("%q; expected a number, which may end in K, M or G", text)
	}
	return v * factor, nil
}

func (c *command) measureTraffic(errs io.Writer, b *benchClient) error {
	interrupted, release := untilSignal()
	defer release()
	b.Stop = interrupted.Done()
	context.AfterFunc(interrupted, release) // a second signal ends the process
	line := progressLine{out: c.out, bits: b.spec.Mode == traffic.Stream, terminal: isTerminal(c.out), shortest: b.interval / 20}
	if c.json {
		line.out, line.terminal = errs, isTerminal(errs)
	}
	if b.interval > 0 && (!c.json || line.terminal) {
		b.Progress = line.tell
	}
	r, err := b.Run(context.Background(), b.spec)
	line.clear()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(r)
	}
	return printTraffic(c.out, r)
}
