// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weft/central/pki"
	"weft/central/wire"
	"weft/cmd/exit"
	"weft/internal/buildinfo"
	"weft/internal/testnet"
)

// Environment variables of the test binary.
const (
	// centralEnv makes the test binary run as weft-central.
	centralEnv = "WEFT_TEST_CENTRAL"
	// graceEnv is the time for which this central's old hosts keep moved ports, such as 1s.
	graceEnv = "WEFT_TEST_MOVE_GRACE"
)

func TestMain(m *testing.M) {
	if os.Getenv(centralEnv) != "" {
		if text := os.Getenv(graceEnv); text != "" {
			var err error
			if moveGrace, err = time.ParseDuration(text); err != nil {
				panic(err)
			}
		}
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	if os.Getenv(printTimeEnv) != "" {
		printTime()
		return
	}
	os.Exit(m.Run())
}

// site is a network namespace with the centrals a, b and c on 127.0.0.1.
type site struct {
	t    *testing.T
	dir  string
	ns   *testnet.Namespace
	runs map[string]*exec.Cmd
}

func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command("ip", append([]string{"netns", "exec", s.ns.Name, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), centralEnv+"=1")
	cmd.Dir = s.dir
	return cmd
}

func (s *site) do(args ...string) (string, error) {
	out, err := s.command(args...).CombinedOutput()
	return string(out), err
}

func (s *site) mustRun(args ...string) {
	s.t.Helper()
	if out, err := s.do(args...); err != nil {
		s.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

func (s *site) run(name string) {
	s.t.Helper()
	cmd := s.command("run", "--data", name)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.runs[name] = cmd
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("%s: %s", name, log.String())
		}
	})
}

func (s *site) end(name string, signal syscall.Signal) error {
	s.t.Helper()
	if err := s.runs[name].Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
	return s.runs[name].Wait()
}

// admin calls a central from inside the namespace. It repeats the call until it
// succeeds.
func (s *site) admin(port int, call func(context.Context, wire.AdminClient) error) {
	s.t.Helper()
	keys, err := pki.Load(pki.FilesIn(filepath.Join(s.dir, "a", "admin")))
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := grpc.NewClient(fmt.Sprint("passthrough:127.0.0.1:", port), grpc.WithTransportCredentials(credentials.NewTLS(keys.Client())),
		grpc.WithContextDialer(func(_ context.Context, address string) (conn net.Conn, err error) {
			s.ns.Do(func() { conn, err = net.Dial("tcp", address) })
			return conn, err
		}))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for {
		if err = call(ctx, wire.NewAdminClient(conn)); err == nil {
			return
		}
		if ctx.Err() != nil {
			s.t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *site) setNet(port int, name string, vni uint32) {
	s.t.Helper()
	s.admin(port, func(ctx context.Context, c wire.AdminClient) error {
		_, err := c.Apply(ctx, &wire.ChangeRequest{Id: name, Changes: []*wire.Change{{Change: &wire.Change_SetNet{
			SetNet: &wire.Net{Id: name, Name: name, Vni: vni}}}}})
		return err
	})
}

func (s *site) nets(port int) (names string) {
	s.t.Helper()
	s.admin(port, func(ctx context.Context, c wire.AdminClient) error {
		stream, err := c.List(ctx, &wire.ListRequest{Nets: true})
		if err != nil {
			return err
		}
		r, err := stream.Recv()
		names = ""
		for _, n := range r.GetNets() {
			names += n.Name + " "
		}
		return err
	})
	return strings.TrimSpace(names)
}

func (s *site) join(name string, port int) {
	s.t.Helper()
	var token string
	s.admin(7700, func(ctx context.Context, c wire.AdminClient) error {
		r, err := c.Invite(ctx, &wire.InviteRequest{Role: "central", Name: name})
		token = r.GetToken()
		return err
	})
	// Connections to central a have the source address 127.0.0.1, which the certificate lacks, as
	// on a machine with several addresses.
	args := []string{"join", "--token", token, "--address", fmt.Sprint("127.0.0.2:", port), "--data", name, "--listen", fmt.Sprint("0.0.0.0:", port), "127.0.0.1:7700"}
	s.mustRun(args...)
	args[6] = name + "-again"
	if out, err := s.do(args...); err == nil || !strings.Contains(out, "token is not known") || strings.Contains(out, token) {
		s.t.Errorf("the token works twice, or is shown: %s", out)
	}
}

// down returns the error texts of the centrals that are down, as central a lists them.
func (s *site) down() (list string) {
	s.t.Helper()
	s.admin(7700, func(ctx context.Context, c wire.AdminClient) error {
		r, err := c.Status(ctx, &wire.StatusRequest{})
		list = ""
		for _, m := range r.GetCentrals() {
			if !m.Healthy {
				list += m.Name + ": " + m.Trouble + "\n"
			}
		}
		return err
	})
	return list
}

// A cluster of three centrals still accepts writes after the central that was started
// first is killed. A backup of the store can be restored.
func TestThreeCentrals(t *testing.T) {
	s := &site{t: t, dir: t.TempDir(), ns: testnet.New(t), runs: map[string]*exec.Cmd{}}
	s.mustRun("init", "--name", "a", "--address", "127.0.0.1:7700", "--data", "a")
	s.run("a")
	s.setNet(7700, "first", 1)
	for name, port := range map[string]int{"b": 7710, "c": 7720} {
		s.join(name, port)
		if list := s.down(); !strings.Contains(list, "has never started") {
			t.Errorf("%s has joined and does not run; down: %q", name, list)
		}
		s.run(name) // the next one joins while this one still has no vote
	}
	for _, port := range []int{7710, 7720} {
		s.nets(port) // it serves
	}
	backup := filepath.Join(s.dir, "backup")
	s.admin(7720, func(ctx context.Context, c wire.AdminClient) error { return save(ctx, c, backup) })
	if err := s.end("a", syscall.SIGKILL); err == nil {
		t.Error("SIGKILL ended a without an error")
	}
	start := time.Now()
	s.setNet(7710, "second", 2)
	t.Logf("SIGKILL of a central: the next write took %s", time.Since(start).Round(time.Millisecond))
	if got := s.nets(7720); got != "first second" {
		t.Errorf("c has %q", got)
	}
	s.run("a")
	if got := s.nets(7700); got != "first second" {
		t.Errorf("a has %q after its restart", got)
	}
	if out, err := s.do("restore", "--data", "a", backup); err == nil || !strings.Contains(out, "stop it first") {
		t.Errorf("a running central is restored: %s", out)
	}
	for name := range s.runs {
		if err := s.end(name, syscall.SIGTERM); err != nil {
			t.Errorf("%s ends with %v", name, err)
		}
	}
	s.mustRun("restore", "--data", "a", backup)
	s.run("a")
	if got := s.nets(7700); got != "first" {
		t.Errorf("the restored store has %q", got)
	}
	s.setNet(7700, "third", 3)
}

func save(ctx context.Context, c wire.AdminClient, file string) error {
	stream, err := c.Save(ctx, &wire.SaveRequest{})
	if err != nil {
		return err
	}
	var all []byte
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return os.WriteFile(file, all, 0o600)
		}
		if err != nil {
			return err
		}
		all = append(all, chunk.Data...)
	}
}

// For wrong input, weft-central prints one line and exits with code 2.
func TestWrongInput(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, settingsFile), []byte("nmae = 'a'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var version bytes.Buffer
	if code := run([]string{"--version"}, &version, io.Discard); code != 0 || !strings.HasPrefix(version.String(), "weft-central version "+buildinfo.Own().String()) {
		t.Errorf("--version: exit code %d, %q", code, version.String())
	}
	for words, args := range map[string][]string{
		"expected init, join":          {"x"},
		"name \"\"":                    {"init", "--address", "127.0.0.1:1", "--data", dir + "/a"},
		"expected HOST:PORT":           {"init", "--name", "a", "--data", dir + "/a"},
		"unknown flag":                 {"init", "--nmae", "a"},
		"has a central already":        {"init", "--name", "a", "--address", "127.0.0.1:1", "--data", dir},
		"nmae: unknown key":            {"run", "--data", dir},
		"make it with weft-central":    {"run", "--data", dir + "/none"},
		"this is no token":             {"join", "--token", "x", "--address", "127.0.0.1:1", "127.0.0.1:2"},
		"expected HOST:PORT of a":      {"join", "--token", "x"},
		"expected a file of weft":      {"restore", "--data", dir + "/c", dir + "/none"},
		"expected --ca, --certificate": {"init", "--name", "a", "--address", "127.0.0.1:1", "--data", dir + "/b", "--ca", "x"},
	} {
		if words == "expected a file of weft" {
			if err := os.MkdirAll(dir+"/c", 0o700); err != nil {
				t.Fatal(err)
			}
			s := settings{Name: "a", Address: "127.0.0.1:1", Peer: "127.0.0.1:2"}
			if err := s.save(dir + "/c"); err != nil {
				t.Fatal(err)
			}
		}
		var out, errs bytes.Buffer
		code := run(args, &out, &errs)
		if code != exit.Input || !strings.Contains(errs.String(), words) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, %q; expected %q", args, code, errs.String(), words)
		}
	}
}
