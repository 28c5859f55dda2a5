// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// weft is this project's switch.
type weft struct {
	bin    string // directory of the programs weftd and weft
	daemon *process
	socket string
}

func (w *weft) up(r *run, s setup) {
	w.launch(r, s.site.host(), switchCore)
	var verbs []string
	for i := range s.guests {
		verbs = append(verbs, fmt.Sprintf("add-port %s type=vhost-user path=%s mode=client", guestName(i), r.socket(i)))
	}
	if s.site != nil {
		verbs = append(verbs, "add-port up type=af_xdp dev="+s.site.dev, "add-port vx type=vxlan vni=100 remote="+s.site.remote)
	}
	flows := writeFlows(r, s, guestName, "vx")
	w.do(append(verbs, "add-flows "+flows)...)
}

// launch starts weftd with one worker on the given core, and waits until its API answers. weftd ends
// with the run.
func (w *weft) launch(r *run, netns string, core int, options ...string) {
	w.launchAs(r, netns, fmt.Sprint("weftd", core), append(options, "--workers", "1", "--cores", fmt.Sprint(core))...)
}

// launchAs starts weftd under a name that is unique in the run. Without other options, weftd has one
// worker on the machine's last core.
func (w *weft) launchAs(r *run, netns, name string, options ...string) {
	w.bin, w.socket = r.bin, filepath.Join(r.dir, name+".sock")
	words := append([]string{filepath.Join(r.bin, "weftd"), "--socket", w.socket, "--state", filepath.Join(r.dir, name+".state")}, options...)
	w.daemon = r.start(name, netnsCommand(netns, words...)...)
	w.daemon.quit = syscall.SIGINT // after SIGTERM, the engine would continue
	eventually(10*time.Second, func() {
		lab.Check(w.daemon.alive())
		w.cli("show")
	})
}

func (w *weft) cli(args ...string) string {
	return lab.Must(command([]string{"WEFT_SOCKET=" + w.socket}, filepath.Join(w.bin, "weft"), args...))
}

func (w *weft) do(lines ...string) {
	for _, line := range lines {
		w.cli(strings.Fields(line)...)
	}
}

func (w *weft) show() *api.Show {
	out := w.cli("show", "--json")
	var s api.Show
	if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Workers) == 0 {
		lab.Check(fmt.Errorf("weft show: %w, %d workers", err, len(s.Workers)))
	}
	return &s
}

func (w *weft) worker() *api.Worker {
	return &w.show().Workers[0]
}
