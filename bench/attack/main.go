// SPDX-License-Identifier: Apache-2.0

// Command attack attacks a running switch from outside, one attack after the other, and prints each
// attack's effect on the bystanders: two guests that exchange frames all the time and check each frame.
//
//	go run ./bench/attack -seconds 60
//	go run ./bench/attack -only ct-flood,call-eventfd -json
//	go run ./bench/attack -storm 1h -seed 7
//	go run ./bench/attack -kills 1000
//	go run ./bench/attack -upgrades 1000
//
// An attacker is a front end on a vhost-user socket, a guest that sends frames, a peer on the underlay,
// an OpenFlow peer or a client of the API. SECURITY.md has the switch's promises and the table of
// results.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft/e2e/lab"
)

var (
	seconds   = flag.Float64("seconds", 60, "how long each attack is played")
	repeats   = flag.Int("repeats", leastRepeats, "how often at least, of attacks that are shaped like a message")
	selection = flag.String("only", "", "names of attacks, separated by commas; empty: all")
	asJSON    = flag.Bool("json", false, "print JSON")
	asPage    = flag.Bool("markdown", false, "print the table of SECURITY.md")
	list      = flag.Bool("list", false, "print the names and what each does")
	workers   = flag.Int("workers", 1, "workers of the switch")
	bin       = flag.String("bin", "", "folder of weftd and weft; built from the tree if empty")
	storm     = flag.Duration("storm", 0, "play all attacks at random, together, for so long, with kills and changes of flows")
	kills     = flag.Int("kills", 0, "instead of attacks, kill -victim so often and print the bystanders' pauses")
	victim    = flag.String("victim", "engine", "of -kills: engine, control or both")
	upgrades  = flag.Int("upgrades", 0, "instead of attacks, upgrade the switch so often, to and fro between two builds, and print the bystanders' pauses")
	between   = flag.String("between", "", "of -upgrades: two folders with weftd and weft, separated by a comma; built from the tree if empty")
	packed    = flag.Bool("packed", false, "of -kills and -upgrades: packed rings")
	seed      = flag.Uint64("seed", 1, "of all that is random")
	verbose   = flag.Bool("v", false, "print what the switch has logged at the end of a row that does not hold")
)

func main() {
	flag.Parse()
	if *list {
		for _, a := range attacks {
			fmt.Printf("%-28s %-10s %s\n", a.name, a.attacker, a.summary)
		}
		return
	}
	lab.Binaries = *bin
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupts
		lab.CloseAll()
		os.Exit(130)
	}()
	ok, err := perform(chosen(*selection))
	lab.CloseAll()
	if err != nil {
		log.Fatal(err)
	}
	if !ok {
		os.Exit(1)
	}
}

func chosen(names string) []*attack {
	if names == "" {
		return attacks
	}
	var list []*attack
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(attacks, func(a *attack) bool { return a.name == name })
		if i < 0 {
			log.Fatalf("-only %s: no such attack; -list prints them", name)
		}
		list = append(list, attacks[i])
	}
	return list
}

func perform(list []*attack) (ok bool, err error) {
	if *storm > 0 {
		return runStorm(*storm, *seed, list)
	}
	if *kills > 0 || *upgrades > 0 {
		return runSeries(*seed)
	}
	rows, err := playAll(list, runConfig{seconds: *seconds, repeats: *repeats, longest: 10 * time.Minute, limits: promised, seed: *seed}, *workers,
		func(s *site, r *row) {
			if *verbose && len(r.Faults) > 0 {
				fmt.Fprintln(os.Stderr, s.log())
			}
			if !*asJSON && !*asPage {
				printRows(os.Stdout, []row{*r})
			}
		})
	if err != nil {
		return false, err
	}
	if *asPage {
		printMarkdown(os.Stdout, rows)
	}
	if *asJSON {
		text, err := json.MarshalIndent(rows, "", "  ")
		if err != nil {
			return false, err
		}
		fmt.Println(string(text))
	} else if !*asPage {
		fmt.Println()
		printRows(os.Stdout, rows)
	}
	return !slices.ContainsFunc(rows, func(r row) bool { return len(r.Faults) > 0 }), nil
}

// playAll plays the attacks one after the other. After an attack with a fault, it starts a new switch.
func playAll(list []*attack, c runConfig, workers int, visit func(*site, *row)) (rows []row, err error) {
	defer lab.Caught(&err)
	type kind struct {
		uplink string
		greedy bool
	}
	sites := map[kind]*site{}
	var labs []*lab.Lab
	defer func() {
		for _, s := range sites {
			s.close()
		}
		for _, l := range labs {
			l.Close()
		}
	}()
	for _, a := range list {
		k := kind{cmp.Or(a.uplink, "af_xdp"), a.greedy}
		s := sites[k]
		if s == nil {
			l := lab.New(lab.Program{})
			labs = append(labs, l)
			s = newSite(l, siteConfig{workers: workers, uplink: k.uplink, paced: !k.greedy, greedy: k.greedy})
			sites[k] = s
		}
		r, err := s.run(a, c)
		if err != nil {
			r.fault("%v", err)
		}
		rows = append(rows, r)
		visit(s, &r)
		if len(r.Faults) > 0 {
			s.close()
			s.lab.Close()
			delete(sites, k)
		}
	}
	return rows, nil
}
