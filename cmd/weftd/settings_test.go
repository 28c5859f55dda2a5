// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"weft/control/access"
	"weft/internal/logs"
)

func writeSettings(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weft.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Flags override the configuration file, and the file overrides the defaults.
func TestSettingsOrder(t *testing.T) {
	file, err := readSettings(writeSettings(t, "socket = \"/f/s\"\nstate = \"/f/state\"\nworkers = 2\ncores = \"2-3\"\ncentral = \"a:1,b:2\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	var s settings
	flags := pflag.NewFlagSet("weftd", pflag.ContinueOnError)
	s.register(flags)
	if err := flags.Parse([]string{"--state", "/flag"}); err != nil {
		t.Fatal(err)
	}
	s.fillFrom(file, flags)
	c, err := s.config()
	if err != nil {
		t.Fatal(err)
	}
	if c.StateDir != "/flag" || c.Socket != "/f/s" || c.Workers != 2 || len(c.Cores) != 2 || c.Cores[1] != 3 || c.SpinUS == 0 ||
		len(c.Central) != 2 || c.Central[1] != "b:2" || c.CentralCerts != defaultCerts {
		t.Errorf("%+v", c)
	}
}

func TestSettingsRefused(t *testing.T) {
	for _, c := range []struct{ text, word string }{
		{"socket = \"/s\"\nsokcet = \"/s\"\n", "line 2: sokcet"},
		{"sokcet = 1", "socket-group"},
		{"[worker]\nn = 1\n", "worker"},
		{"socket = \"/s\"\nworkers = \"two\"\n", "line 2: workers: expected a number, not string"},
		{"cores = 5\n", "line 1: cores: expected a string in quotes, not integer"},
		{"vsock = \"x\"\n", "line 1: vsock: expected a number, not string"},
		{"workers = \n", "line 1"},
	} {
		_, err := readSettings(writeSettings(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.word) || !strings.Contains(err.Error(), "weft.toml") {
			t.Errorf("%q: %v, expected %q in it", c.text, err, c.word)
		}
	}
	for _, c := range []struct {
		settings
		word string
	}{
		{settings{State: "x"}, "socket"},
		{settings{Socket: "x"}, "state"},
		{settings{Socket: "x", State: "y", SpinUS: -1}, "spin-us: -1"},
		{settings{Socket: "x", State: "y"}, "spin-us: 0"},
		{settings{Socket: "x", State: "y", SpinUS: 1, GuestMemory: -1}, "guest-memory-gib: -1"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Megaflows: 300_000}, "megaflows: 300000: expected a power of two"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Megaflows: 1 << 25}, "megaflows: 33554432"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Connections: -64}, "connections: -64: expected a number"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Cores: "0,x"}, `core "x"`},
		{settings{Socket: "x", State: "y", SpinUS: 1, Capabilities: "net_admin"}, "--user"},
		{settings{Socket: "x", State: "y", SpinUS: 1, User: "nobody", Capabilities: "net_admin,x"}, "capabilities: x: expected"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Vsock: 9, VsockAllow: "5"}, "vsock-allow: 5: expected CID="},
		{settings{Socket: "x", State: "y", SpinUS: 1, Vsock: 9, VsockAllow: "5=admin"}, "vsock-allow: 5=admin"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Vsock: 9, VsockAllow: "5=read,-1=read"}, "vsock-allow: -1=read"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Vsock: 9, VsockAllow: "5=read,5=write"}, "vsock-allow: 5=write"},
		{settings{Socket: "x", State: "y", SpinUS: 1, VsockAllow: "5=read"}, "--vsock"},
		{settings{Socket: "x", State: "y", SpinUS: 1, Cores: "3-1"}, `cores "3-1"`},
		{settings{Socket: strings.Repeat("x", 108), State: "y"}, "socket"},
		{settings{Socket: "x", State: "y", SpinUS: 1, LogLevel: "loud"}, "log-level: loud: expected debug"},
		{settings{Socket: "x", State: "y", SpinUS: 1, LogLevel: "info+1"}, "log-level: info+1"},
	} {
		if _, err := c.config(); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%+v: %v, expected %q in it", c.settings, err, c.word)
		}
	}
}

// A path that leads to no valid configuration file is refused in one line that has the path. A link to a
// valid file is read.
func TestSettingsFiles(t *testing.T) {
	dir := t.TempDir()
	good := writeSettings(t, "socket = \"/s\"\n")
	for _, c := range []struct {
		name string
		make func(path string) error
		word string
	}{
		{"link", func(path string) error { return os.Symlink(good, path) }, ""},
		{"link-to-nothing", func(path string) error { return os.Symlink(filepath.Join(dir, "nothing"), path) }, "no such file"},
		{"link-to-itself", func(path string) error { return os.Symlink(path, path) }, "too many levels"},
		{"link-to-zeros", func(path string) error { return os.Symlink("/dev/zero", path) }, "longer than 1048576 bytes"},
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		{"garbage", func(path string) error { return os.WriteFile(path, []byte("\x00\xff\x7fELF\n\n"), 0o600) }, "line 1"},
		{"huge", func(path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte("# comment\n"), maxSettingsBytes/10+1), 0o600)
		}, "longer than 1048576 bytes"},
	} {
		path := filepath.Join(dir, c.name)
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		s, err := readSettings(path)
		switch {
		case c.word == "" && (err != nil || s.Socket != "/s"):
			t.Errorf("%s: %v", c.name, err)
		case c.word != "" && (err == nil || !strings.Contains(err.Error(), c.word) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v, expected %q and the path in one line", c.name, err, c.word)
		}
	}
}

// The sample configuration file is valid, and shows every setting with a valid value.
func TestSampleConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../packaging/weft.toml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readSettings(writeSettings(t, string(text))); err != nil {
		t.Error(err)
	}
	all := regexp.MustCompile(`(?m)^#(\S+ = )`).ReplaceAllString(string(text), "$1")
	for _, name := range settingNames() {
		if !strings.Contains(all, "\n"+name+" = ") {
			t.Errorf("the sample does not show %s", name)
		}
	}
	s, err := readSettings(writeSettings(t, all))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.config(); err != nil {
		t.Error(err)
	}
}

// The daemon tells systemd that it is ready, reloads and stops.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	r := &reloader{read: func() (*settings, error) { return nil, errors.New("none") }, log: slog.New(slog.DiscardHandler)}
	r.reload()
	got := ""
	for range 2 {
		buf := make([]byte, 256)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got += string(buf[:n]) + ";"
	}
	if !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9]\d*;READY=1;$`).MatchString(got) {
		t.Errorf("%q", got)
	}
}

// SIGHUP changes the log level at once. weftd logs the names of other changed settings.
// If the file is wrong, all settings stay.
func TestReload(t *testing.T) {
	path := writeSettings(t, "log-level = \"warn\"\nworkers = 2\n")
	var log bytes.Buffer
	var flags settings
	f := pflag.NewFlagSet("weftd", pflag.ContinueOnError)
	flags.register(f)
	if err := f.Parse([]string{"--workers", "1"}); err != nil {
		t.Fatal(err)
	}
	r := &reloader{read: func() (*settings, error) { return flags.merge(path, f) }}
	_, r.settings = logs.New(io.Discard)
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	var err error
	if r.running, err = r.read(); err != nil || r.running.Workers != 1 {
		t.Fatalf("%+v, %v", r.running, err)
	}
	for _, c := range []struct {
		text, report, level, format string
	}{
		{"log-level = \"debug\"\nlog-format = \"json\"\nspin-us = 9\nworkers = 2\n", "at_next_start=[spin-us]", "debug", logs.JSON},
		{"log-level = \"loud\"\n", "expected debug, info", "debug", logs.JSON},
		{"log-format = \"xml\"\n", "log-format: xml: expected text, json or ovs", "debug", logs.JSON},
		{"spin-us = x\n", "line 1", "debug", logs.JSON},
		{"", "at_next_start=[]", "info", logs.Text},
	} {
		log.Reset()
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.reload()
		if r.settings.Level() != c.level || r.settings.Format() != c.format || !strings.Contains(log.String(), c.report) {
			t.Errorf("%q: level %s, want %s, format %s, and %q in:\n%s", c.text, r.settings.Level(), c.level, r.settings.Format(), c.report, &log)
		}
	}
}

func TestVsockAllow(t *testing.T) {
	s := settings{Socket: "x", State: "y", SpinUS: 1, Vsock: 9, VsockAllow: "5=read,7=write,8=all,2=none"}
	c, err := s.config()
	want := map[uint32]access.Role{5: access.Read, 7: access.Write, 8: access.Write, 2: access.None}
	if err != nil || !maps.Equal(c.VsockAllow, want) {
		t.Errorf("%v, %v; expected %v", c.VsockAllow, err, want)
	}
}
