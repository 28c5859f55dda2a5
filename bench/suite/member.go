// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"weft/bench/replica"
	"weft/e2e/lab"
)

// memberVerb is the argument with which this program runs a member of a replicated log (package
// replica). The further arguments are the member (0, 1, 2 or client), the four addresses, and options.
const memberVerb = "member"

func runMember(args []string) {
	if len(args) < 2 {
		lab.Check(fmt.Errorf("%s: expected 0, 1, 2 or client, and four addresses", memberVerb))
	}
	conf := &replica.Config{}
	flags := flag.NewFlagSet(memberVerb, flag.ContinueOnError)
	flags.StringVar(&conf.Port, "vhost", "", "be the guest of the vhost-user port with this socket, with UDP in this process")
	flags.Uint64Var(&conf.Requests, "requests", 10_000, "requests to measure")
	flags.Uint64Var(&conf.Warmup, "warmup", 1000, "requests before them")
	flags.IntVar(&conf.Window, "window", 1, "requests at a time")
	flags.BoolVar(&conf.Busy, "busy", false, "poll for messages and never wait")
	hold := flags.Bool("hold", false, "wait for a line of standard input before asking")
	lab.Check(flags.Parse(args[2:]))
	if args[0] == "client" {
		conf.Member = replica.Client
	} else {
		member, err := strconv.Atoi(args[0])
		if err != nil || member >= replica.Client {
			lab.Check(fmt.Errorf("%s: expected 0, 1, 2 or client", args[0]))
		}
		conf.Member = member
	}
	for _, word := range strings.Split(args[1], ",") {
		a, err := netip.ParseAddr(word)
		if err != nil {
			lab.Check(fmt.Errorf("%s: expected an IPv4 address", word))
		}
		conf.Addresses = append(conf.Addresses, a)
	}
	lab.Check(conf.Check())
	if *hold {
		conf.Hold = os.Stdin
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if conf.Member != replica.Client {
		lab.Check(replica.RunReplica(ctx, conf))
		return
	}
	sayReport(lab.Must(replica.RunClient(ctx, conf)))
}
