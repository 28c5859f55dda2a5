// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weft/api"
)

// weft is this project's switch.
type weft struct {
	bin    string // directory of the programs weftd and weft
	daemon *process
	socket string
}

func (w *weft) up(r *run, s setup) error {
	if err := w.launch(r, s.site.host(), switchCore); err != nil {
		return err
	}
	var verbs []string
	for i := range s.guests {
		verbs = append(verbs, fmt.Sprintf("add-port %s type=vhost-user path=%s mode=client", guestName(i), r.socket(i)))
	}
	if s.site != nil {
		verbs = append(verbs, "add-port up type=af_xdp dev="+s.site.dev, "add-port vx type=vxlan vni=100 remote="+s.site.remote)
	}
	flows, err := writeFlows(r, s, guestName, "vx")
	if err != nil {
		return err
	}
	return w.do(append(verbs, "add-flows "+flows)...)
}

// launch starts weftd with one worker on the given core, and waits until its API answers. weftd ends
// with the run.
func (w *weft) launch(r *run, netns string, core int, options ...string) error {
	return w.launchAs(r, netns, fmt.Sprint("weftd", core), append(options, "--workers", "1", "--cores", fmt.Sprint(core))...)
}

// launchAs starts weftd under a name that is unique in the run. Without other options, weftd has one
// worker on the machine's last core.
func (w *weft) launchAs(r *run, netns, name string, options ...string) (err error) {
	w.bin, w.socket = r.bin, filepath.Join(r.dir, name+".sock")
	words := append([]string{filepath.Join(r.bin, "weftd"), "--socket", w.socket, "--state", filepath.Join(r.dir, name+".state")}, options...)
	if w.daemon, err = r.start(name, netnsCommand(netns, words...)...); err != nil {
		return err
	}
	w.daemon.quit = syscall.SIGINT // after SIGTERM, the engine would continue
	return eventually(10*time.Second, func() error {
		_, err := w.cli("show")
		return errors.Join(w.daemon.alive(), err)
	})
}

func (w *weft) cli(args ...string) (string, error) {
	return command([]string{"WEFT_SOCKET=" + w.socket}, filepath.Join(w.bin, "weft"), args...)
}

func (w *weft) do(lines ...string) error {
	for _, line := range lines {
		if _, err := w.cli(strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

func (w *weft) show() (*api.Show, error) {
	out, err := w.cli("show", "--json")
	if err != nil {
		return nil, err
	}
	var s api.Show
	if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Workers) == 0 {
		return nil, fmt.Errorf("weft show: %w, %d workers", err, len(s.Workers))
	}
	return &s, nil
}

func (w *weft) worker() (*api.Worker, error) {
	s, err := w.show()
	if err != nil {
		return nil, err
	}
	return &s.Workers[0], nil
}
