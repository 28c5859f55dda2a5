// SPDX-License-Identifier: Apache-2.0

package central

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"time"
)

// profileLength is the length of a weft-central server's CPU profile, except in the scenario churn,
// whose profile is as long as the churn.
const profileLength = 10 * time.Second

// profile starts CPU profiles of the weft-central servers and of this process. The function stop ends
// them. It also writes heap profiles of the first server and of this process.
func (r *run) profile(scenario string) (stop func()) {
	if r.Profile == "" {
		return func() {}
	}
	_ = os.MkdirAll(r.Profile, 0o700)
	length := profileLength
	if scenario == "churn" {
		length = r.Length
	}
	var done sync.WaitGroup
	for i := range r.cluster.nodes {
		done.Go(func() { r.fetch(scenario, i, fmt.Sprintf("profile?seconds=%d", int(length.Seconds())), "cpu") })
	}
	own, err := os.Create(filepath.Join(r.Profile, scenario+".driver.cpu"))
	if err != nil || pprof.StartCPUProfile(own) != nil {
		return done.Wait
	}
	return func() {
		pprof.StopCPUProfile()
		own.Close()
		r.fetch(scenario, 0, "heap", "heap")
		if heap, err := os.Create(filepath.Join(r.Profile, scenario+".driver.heap")); err == nil {
			_ = pprof.WriteHeapProfile(heap)
			heap.Close()
		}
		done.Wait()
	}
}

func (r *run) fetch(scenario string, i int, name, suffix string) {
	reply, err := http.Get("http://" + r.cluster.nodes[i].profile + "/debug/pprof/" + name)
	if err != nil {
		r.Log("no profile of central %d: %v", i, err)
		return
	}
	defer reply.Body.Close()
	f, err := os.Create(filepath.Join(r.Profile, fmt.Sprintf("%s.c%d.%s", scenario, i, suffix)))
	if err != nil {
		r.Log("no profile of central %d: %v", i, err)
		return
	}
	defer f.Close()
	_, _ = io.Copy(f, reply.Body)
}
