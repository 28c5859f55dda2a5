// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// The functions below are a client that adds flows at a constant rate, in a process of its own.

// changeVerb is the argument that starts the client.
const changeVerb = "flow-changes"

// changesRate is the number of flows that the client adds per second.
const changesRate = 10_000

// changesEvery is the time between the starts of two requests.
const changesEvery = 20 * time.Millisecond

type changeSpec struct {
	Socket string
	Length time.Duration
}

type changeReport struct{ Rate float64 } // number of flows added per second

// runChanges is the main function of the client's process. If requests take longer than changesEvery,
// the client sends them one after the other.
func runChanges(args []string) {
	var spec changeSpec
	asLoad(args, &spec)
	client := lab.Must(api.NewClient(spec.Socket))
	var text strings.Builder
	flows, begin := 0, time.Now()
	for next := begin; time.Since(begin) < spec.Length; next = next.Add(changesEvery) {
		time.Sleep(time.Until(next))
		text.Reset()
		for range int(changesRate * changesEvery / time.Second) {
			fmt.Fprintf(&text, "priority=7,udp,nw_dst=10.%d.%d.%d,tp_dst=53,actions=drop\n", 128+flows>>16, flows>>8&255, flows&255)
			flows++
		}
		lab.Must(client.ChangeFlows(api.ChangeFlows{Op: "add", Text: text.String(), File: true}))
	}
	sayReport(changeReport{float64(flows) / time.Since(begin).Seconds()})
}

func changeFlows(r *run, sw *weft, length time.Duration) {
	p := startAs(r, "changes", "", changeVerb, changeSpec{sw.socket, length})
	var report changeReport
	p.waitForReport(length+20*time.Second, &report)
	r.note("flows added", "flows/s", report.Rate)
}
