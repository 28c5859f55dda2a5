package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/bench/replica"
)

const benchReplicaHelp = `Is one of three replicas that agree on requests over UDP (a leader, two followers,
a majority commits), or their client, which measures. Each runs in a guest of its
own; addresses are of replicas 0 (which leads), 1 and 2, and of the client:

  weft bench replica 0 10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4 &
  weft bench replica 1 ... & weft bench replica 2 ... &
  weft bench replica client 10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4 --requests 10000

With --vhost the member is itself the guest of a vhost-user port, with UDP in its
own process instead of the kernel's. Hardware addresses are then 02:00 and the IP
address; other members' must be, too. The client ends the replicas.`

func (c *command) benchReplicaVerb() *cobra.Command {
	conf := &replica.Config{}
	verb := &cobra.Command{Use: "replica 0|1|2|client ADDRESS,ADDRESS,ADDRESS,ADDRESS", Short: "agree on requests, as one of three replicas or their client",
		Long: benchReplicaHelp, Args: words(2, 2)}
	f := verb.Flags()
	f.StringVar(&conf.Port, "vhost", "", "be the guest of the vhost-user port with this socket")
	f.Uint64Var(&conf.Requests, "requests", 10_000, "to measure")
	f.Uint64Var(&conf.Warmup, "warmup", 1000, "requests before them")
	f.IntVar(&conf.Window, "window", 1, "requests at a time")
	f.BoolVar(&conf.Busy, "busy", false, "never wait for messages, look again and again")
	hold := f.Bool("hold", false, "wait for a line of standard input before asking")
	verb.RunE = func(_ *cobra.Command, args []string) error {
		var err error
		if conf.Member, err = strconv.Atoi(args[0]); args[0] == "client" {
			conf.Member = replica.Client
		} else if err != nil || conf.Member >= replica.Client {
			return usagef("%s: expected 0, 1, 2 or client", args[0])
		}
		for _, word := range strings.Split(args[1], ",") {
			a, err := netip.ParseAddr(word)
			if err != nil {
				return usagef("%s: expected an IPv4 address", word)
			}
			conf.Addresses = append(conf.Addresses, a)
		}
		if err := conf.Check(); err != nil {
			return usagef("%v", err)
		}
		if *hold {
			conf.Hold = c.in
		}
		ctx, stop := untilSignal()
		defer stop()
		if conf.Member != replica.Client {
			return replica.RunReplica(ctx, conf)
		}
		r, err := replica.RunClient(ctx, conf)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(r)
		}
		c.printReplica(r)
		return nil
	}
	return verb
}

func (c *command) printReplica(r *replica.Report) {
	fmt.Fprintf(c.out, "%d requests, %d at a time, agreed on in %.2f s: %s/s\n", r.Requests, r.Window, r.Seconds, scaled(r.Rate, ""))
	fmt.Fprintf(c.out, "µs: 50 %% %.1f, 90 %% %.1f, 99 %% %.1f, 99.9 %% %.1f, max %.1f\n", r.P50, r.P90, r.P99, r.P999, r.Max)
	for i, m := range r.Members {
		name := fmt.Sprint("replica ", i)
		if i == replica.Client {
			name = "client"
		}
		fmt.Fprintf(c.out, "%-9s  %.3f s user, %.3f s system\n", name, m.User, m.System)
	}
}
