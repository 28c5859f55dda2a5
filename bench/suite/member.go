// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"weft/bench/replica"
)

// memberVerb is the argument with which this program runs a member of a replicated log (package
// replica). The further arguments are the member (0, 1, 2 or client), the four addresses, and options.
const memberVerb = "member"

func runMember(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%s: expected 0, 1, 2 or client, and four addresses", memberVerb)
	}
	conf := &replica.Config{}
	flags := flag.NewFlagSet(memberVerb, flag.ContinueOnError)
	flags.StringVar(&conf.Port, "vhost", "", "be the guest of the vhost-user port with this socket, with UDP in this process")
	flags.Uint64Var(&conf.Requests, "requests", 10_000, "requests to measure")
	flags.Uint64Var(&conf.Warmup, "warmup", 1000, "requests before them")
	flags.IntVar(&conf.Window, "window", 1, "requests at a time")
	flags.BoolVar(&conf.Busy, "busy", false, "poll for messages and never wait")
	hold := flags.Bool("hold", false, "wait for a line of standard input before asking")
	if err := flags.Parse(args[2:]); err != nil {
		return err
	}
	if args[0] == "client" {
		conf.Member = replica.Client
	} else {
		member, err := strconv.Atoi(args[0])
		if err != nil || member >= replica.Client {
			return fmt.Errorf("%s: expected 0, 1, 2 or client", args[0])
		}
		conf.Member = member
	}
	for _, word := range strings.Split(args[1], ",") {
		a, err := netip.ParseAddr(word)
		if err != nil {
			return fmt.Errorf("%s: expected an IPv4 address", word)
		}
		conf.Addresses = append(conf.Addresses, a)
	}
	if err := conf.Check(); err != nil {
		return err
	}
	if *hold {
		conf.Hold = os.Stdin
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if conf.Member != replica.Client {
		return replica.RunReplica(ctx, conf)
	}
	report, err := replica.RunClient(ctx, conf)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}
