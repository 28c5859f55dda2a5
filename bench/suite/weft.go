package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// weft is this project's own switch.
type weft struct {
	bin    string // folder of weftd and weft
	daemon *process
	socket string
}

func (w *weft) up(r *run, s setup) error {
	w.bin, w.socket = r.bin, filepath.Join(r.dir, "weft.sock")
	args := s.site.in(filepath.Join(r.bin, "weftd"), "--socket", w.socket,
		"--state", filepath.Join(r.dir, "state"), "--workers", "1", "--cores", fmt.Sprint(switchCore))
	var err error
	if w.daemon, err = start(r.dir, "weftd", args[0], args[1:]...); err != nil {
		return err
	}
	if err := eventually(10*time.Second, func() error {
		_, err := w.cli("show")
		return errors.Join(w.daemon.alive(), err)
	}); err != nil {
		return err
	}
	var verbs []string
	for i := range s.guests {
		verbs = append(verbs, fmt.Sprintf("add-port %s type=vhost-user path=%s mode=client", guestName(i), r.socket(i)))
	}
	if s.site != nil {
		verbs = append(verbs, "add-port up type=af_xdp dev="+s.site.uplink,
			"add-port vx type=vxlan vni=100 remote="+s.site.remote)
	}
	flows, err := writeFlows(r, s, guestName, "vx")
	if err != nil {
		return err
	}
	for _, v := range append(verbs, "add-flows "+flows) {
		if _, err := w.cli(strings.Fields(v)...); err != nil {
			return err
		}
	}
	return nil
}

// cli runs the client and returns what it printed.
func (w *weft) cli(args ...string) (string, error) {
	return command([]string{"WEFT_SOCKET=" + w.socket}, filepath.Join(w.bin, "weft"), args...)
}

func (w *weft) down() {
	w.daemon.stop()
	w.daemon = nil
}
