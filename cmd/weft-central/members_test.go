// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/testnet"
)

// Silent connections to the address for other centrals use up no descriptors. More connections than the
// process may open files neither keep another central out nor keep this one from ending.
func TestSilentConnectionsToEtcd(t *testing.T) {
	const files, silent = 400, 500
	s := &site{t: t, dir: t.TempDir(), ns: testnet.New(t), runs: map[string]*exec.Cmd{}}
	s.mustRun("init", "--name", "a", "--address", "127.0.0.1:7700", "--data", "a")
	s.run("a")
	s.nets(7700) // it serves
	limit := unix.Rlimit{Cur: files, Max: files}
	if err := unix.Prlimit(s.runs["a"].Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	for i := range silent {
		c, err := s.dialEtcd(i % 20)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	asked := false
	config := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		return nil, errors.New("none")
	}}
	for end := time.Now().Add(patience); !asked && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c, err := s.dialEtcd(20)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		_ = tls.Client(c, config).Handshake()
		c.Close()
	}
	if !asked {
		t.Error("etcd asks another central for no certificate")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.end("a", syscall.SIGTERM) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("SIGTERM does not end it")
	}
}

// dialEtcd connects to the address for other centrals from one of several addresses.
func (s *site) dialEtcd(number int) (c net.Conn, err error) {
	s.ns.Do(func() {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprint("127.0.1.", number+1))}, Timeout: patience}
		c, err = d.Dial("tcp", "127.0.0.1:7701")
	})
	return c, err
}
