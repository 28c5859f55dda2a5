// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"weft/api"
	"weft/cmd/exit"
	"weft/conntrack"
	"weft/control"
	"weft/control/access"
	"weft/control/bridges"
	"weft/control/ofconn"
	"weft/control/ovsdb"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/logs"
	"weft/internal/tomltext"
)

const (
	defaultState = "/var/lib/weft"
	defaultCerts = "/etc/weft/central"

	defaultOpenFlowCerts = "/etc/weft/openflow"
	// besideSocket is the value of openflow-socket for the path at which ovs-ofctl looks for the
	// switch. The path ends in mgmtSuffix. Its directory is that of the API's socket, or that of
	// ovsdb-server's socket if the switch uses ovsdb-server and has no name.
	besideSocket = "beside"
	mgmtSuffix   = ".mgmt"
	secure       = "secure"
	standalone   = "standalone"
)

// switchName matches valid names of a switch. They are also valid names of network devices,
// because the device LOCAL may have the switch's name.
var switchName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)

// settings has weftd's settings, from the flags and the configuration file.
type settings struct {
	Name        string `toml:"name"`
	Socket      string `toml:"socket"`
	SocketGroup string `toml:"socket-group"`
	SocketRead  string `toml:"socket-read-group"`
	State       string `toml:"state"`
	Workers     int    `toml:"workers"`
	Cores       string `toml:"cores"`
	Vsock       uint32 `toml:"vsock"`
	VsockAllow  string `toml:"vsock-allow"`
	Metrics     string `toml:"metrics"`
	SpinUS      int    `toml:"spin-us"`
	GuestMemory int    `toml:"guest-memory-gib"`
	Megaflows   int    `toml:"megaflows"`
	Connections int    `toml:"connections"`
	Central     string `toml:"central"`
	Certs       string `toml:"central-certs"`
	LogLevel    string `toml:"log-level"`
	LogFormat   string `toml:"log-format"`

	User         string `toml:"user"`
	Capabilities string `toml:"capabilities"`

	OpenFlowSocket string `toml:"openflow-socket"`
	OpenFlowListen string `toml:"openflow-listen"`
	Controller     string `toml:"controller"`
	OpenFlowCerts  string `toml:"openflow-certs"`
	FailMode       string `toml:"fail-mode"`
	DatapathID     string `toml:"datapath-id"`
	OVSDB          string `toml:"ovsdb"`
}

func (s *settings) register(f *pflag.FlagSet) {
	f.StringVar(&s.Name, "name", "", "the switch's name, as of a bridge: ovs-ofctl NAME finds its socket, and weft takes it as the first word (default: none)")
	f.StringVar(&s.Socket, "socket", api.DefaultSocket, "where the API listens")
	f.StringVar(&s.SocketGroup, "socket-group", "", "group whose members may use the whole API, like root")
	f.StringVar(&s.SocketRead, "socket-read-group", "", "group whose members may read but not change; no captures, which show payloads")
	f.StringVar(&s.State, "state", defaultState, "directory of the stored ports and flows")
	f.IntVar(&s.Workers, "workers", 0, "number of workers (default: one for each of --cores, or 1)")
	f.StringVar(&s.Cores, "cores", "", "the workers' cores, as in 2,4-5 (default: the last ones)")
	f.Uint32Var(&s.Vsock, "vsock", 0, "additional vsock port of the API, only for the host of this machine (CID 2)")
	f.StringVar(&s.VsockAllow, "vsock-allow", "", "roles of further CIDs over vsock, as in 5=read,7=write,2=none; CID 1 is any process of this machine")
	f.StringVar(&s.Metrics, "metrics", "", "address of a Prometheus listener, as in 127.0.0.1:9100")
	f.IntVar(&s.GuestMemory, "guest-memory-gib", 0, "largest memory of one guest, GiB (default: twice the machine's, at least 2048)")
	f.IntVar(&s.Megaflows, "megaflows", 0, "room for megaflows in each worker's cache, a power of two (default: by the machine's memory, 262144 to 2097152); memory is used as they come")
	f.IntVar(&s.Connections, "connections", 0, "room for tracked connections (default: 1048576); memory is used as they come")
	f.StringVar(&s.Central, "central", "", "addresses of weft-central, HOST:PORT[,HOST:PORT...], whose declaration the switch follows")
	f.StringVar(&s.Certs, "central-certs", defaultCerts, "directory of the host's certificate for weft-central: ca.pem, cert.pem, key.pem")
	f.StringVar(&s.User, "user", "", "user to run as, when root starts weftd; the state directory becomes this user's (default: the user who starts weftd)")
	f.StringVar(&s.Capabilities, "capabilities", "", "capabilities to keep with --user, as in net_admin,net_raw, or none (default: those of all kinds of ports, docs/uplinks.md)")
	f.StringVar(&s.OpenFlowSocket, "openflow-socket", besideSocket, "where OpenFlow listens for ovs-ofctl: a path, none, or beside: --socket with .mgmt in place of its suffix, or NAME.mgmt beside it with --name")
	f.StringVar(&s.OpenFlowListen, "openflow-listen", "", "further OpenFlow listeners, ptcp:PORT[:HOST] or pssl:PORT[:HOST], separated by commas; HOST is 127.0.0.1 if missing; ptcp asks for no password")
	f.StringVar(&s.Controller, "controller", "", "OpenFlow controllers to connect to, tcp:HOST:PORT or ssl:HOST:PORT, separated by commas")
	f.StringVar(&s.OpenFlowCerts, "openflow-certs", defaultOpenFlowCerts, "directory of the certificate for pssl and ssl, also of --ovsdb: ca.pem, cert.pem, key.pem")
	f.StringVar(&s.FailMode, "fail-mode", secure, "without a reachable controller: secure keeps to the flows, standalone forwards as a learning switch")
	f.StringVar(&s.DatapathID, "datapath-id", "", "the switch's number for OpenFlow, up to 16 hexadecimal digits (default: derived from the machine and --state)")
	f.StringVar(&s.OVSDB, "ovsdb", "", "ovsdb-server that rules bridges, ports and controllers as it rules ovs-vswitchd, as in unix:/run/openvswitch/db.sock, tcp:HOST:PORT or ssl:HOST:PORT; OpenFlow sockets are then beside it (docs/ovsdb.md)")
	f.StringVar(&s.LogLevel, "log-level", "info", "least severe messages in the log: debug, info, warn or error; SIGHUP rereads it from the configuration file")
	f.StringVar(&s.LogFormat, "log-format", logs.Text, "format of the log: text, json, or ovs as Open vSwitch's; SIGHUP rereads it from the configuration file")
	f.IntVar(&s.SpinUS, "spin-us", control.DefaultSpinUS, "time for which a worker polls empty queues before it sleeps, µs")
}

// maxSettingsBytes is the largest configuration file in bytes. weftd refuses a longer one, such as a
// link to /dev/zero, which has no end.
const maxSettingsBytes = 1 << 20

func readSettings(path string) (*settings, error) {
	text, err := readAtMost(path, maxSettingsBytes)
	if err != nil {
		return nil, exit.Usagef("%v; expected a configuration file", err)
	}
	s := &settings{}
	if err := tomltext.Decode(text, s); err != nil {
		return nil, exit.Usagef("%s: %v", path, err)
	}
	return s, nil
}

// readAtMost reads a file of at most maxBytes.
func readAtMost(path string, maxBytes int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(text)) > maxBytes {
		err = fmt.Errorf("%s: longer than %d bytes", path, maxBytes)
	}
	return text, err
}

func settingNames() []string {
	var names []string
	for i := range reflect.TypeFor[settings]().NumField() {
		names = append(names, reflect.TypeFor[settings]().Field(i).Tag.Get("toml"))
	}
	return names
}

// fillFrom sets each setting that no flag sets to its value in the configuration file.
func (s *settings) fillFrom(file *settings, flags *pflag.FlagSet) {
	to, from := reflect.ValueOf(s).Elem(), reflect.ValueOf(file).Elem()
	for i, name := range settingNames() {
		if !flags.Changed(name) && !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
}

// merge returns the settings. A flag has precedence over the configuration file. An empty file name
// means no file.
func (s *settings) merge(file string, flags *pflag.FlagSet) (*settings, error) {
	all := *s
	if file == "" {
		return &all, nil
	}
	fromFile, err := readSettings(file)
	if err != nil {
		return nil, err
	}
	all.fillFrom(fromFile, flags)
	return &all, nil
}

func (s *settings) checkLog() error {
	if _, err := logs.ParseLevel(s.LogLevel); s.LogLevel != "" && err != nil {
		return exit.Usagef("log-level: %v", err)
	}
	if err := logs.CheckFormat(s.LogFormat); err != nil {
		return exit.Usagef("log-format: %v", err)
	}
	return nil
}

func (s *settings) config() (control.Config, error) {
	c := control.Config{
		Name: s.Name, Socket: s.Socket, SocketGroup: s.SocketGroup, StateDir: s.State, Workers: s.Workers,
		VsockPort: s.Vsock, Metrics: s.Metrics, SpinUS: s.SpinUS, SocketReadGroup: s.SocketRead,
		GuestMemoryGiB: s.GuestMemory, CentralCerts: s.Certs, Megaflows: s.Megaflows, Connections: s.Connections,
	}
	if c.OVSDB = s.OVSDB; c.OVSDB != "" {
		if err := ovsdb.CheckTarget(c.OVSDB); err != nil {
			return c, exit.Usagef("ovsdb: %v", err)
		}
	}
	if s.Central != "" {
		c.Central = strings.Split(s.Central, ",")
	}
	var err error
	if c.VsockAllow, err = parseVsockAllow(s.VsockAllow); err != nil {
		return c, err
	}
	if c.Cores, err = cpu.ParseList(s.Cores); err != nil {
		return c, exit.Usagef("cores %s: %v", s.Cores, err)
	}
	if c.OpenFlow, err = s.openFlow(); err != nil {
		return c, err
	}
	if err := s.checkLog(); err != nil {
		return c, err
	}
	if _, err := s.keptCapabilities(); err != nil {
		return c, exit.Usagef("capabilities: %v", err)
	}
	switch {
	case s.VsockAllow != "" && s.Vsock == 0:
		return c, exit.Usagef("vsock-allow %s: expected --vsock PORT too", s.VsockAllow)
	case s.Capabilities != "" && s.User == "":
		return c, exit.Usagef("capabilities %s: expected --user NAME too", s.Capabilities)
	case s.Name != "" && !switchName.MatchString(s.Name):
		return c, exit.Usagef("name %s: expected a letter, then up to 14 letters, digits, or any of _ . -", s.Name)
	case s.Socket == "":
		return c, exit.Usagef("socket: expected a path")
	case len(s.Socket) > 107:
		return c, exit.Usagef("socket %s: expected a path of at most 107 bytes", s.Socket)
	case s.State == "":
		return c, exit.Usagef("state: expected a directory")
	case s.GuestMemory < 0 || s.GuestMemory > 1<<20:
		return c, exit.Usagef("guest-memory-gib: %d: expected a number from 1 to %d, or 0 for the default", s.GuestMemory, 1<<20)
	case s.Megaflows != 0 && !isPowerOfTwo(s.Megaflows, flowtable.LeastMegaflows, flowtable.MostMegaflows):
		return c, exit.Usagef("megaflows: %d: expected a power of two from %d to %d, or 0 for the default", s.Megaflows, flowtable.LeastMegaflows, flowtable.MostMegaflows)
	case s.Connections != 0 && (s.Connections < conntrack.LeastConnections || s.Connections > conntrack.MaxConnections):
		return c, exit.Usagef("connections: %d: expected a number from %d to %d, or 0 for the default", s.Connections, conntrack.LeastConnections, conntrack.MaxConnections)
	case s.SpinUS < 1 || s.SpinUS > 1_000_000: // control takes 0 for the default
		return c, exit.Usagef("spin-us: %d: expected a number from 1 to 1000000", s.SpinUS)
	}
	return c, nil
}

// isPowerOfTwo reports whether n is a power of two between the limits.
func isPowerOfTwo(n, lowest, highest int) bool { return n >= lowest && n <= highest && n&(n-1) == 0 }

// openFlow checks the settings of OpenFlow connections, and converts them for package bridges.
func (s *settings) openFlow() (bridges.OpenFlow, error) {
	c := bridges.OpenFlow{Socket: s.OpenFlowSocket, Certs: s.OpenFlowCerts, Standalone: s.FailMode == standalone}
	switch c.Socket {
	case besideSocket:
		c.Socket = strings.TrimSuffix(s.Socket, filepath.Ext(s.Socket)) + mgmtSuffix
		if path, local := strings.CutPrefix(s.OVSDB, "unix:"); local {
			c.Socket = filepath.Join(filepath.Dir(path), "weft"+mgmtSuffix)
		}
		if s.Name != "" {
			c.Socket = filepath.Join(filepath.Dir(s.Socket), s.Name+mgmtSuffix)
		}
	case "none":
		c.Socket = ""
	}
	if s.OpenFlowListen != "" {
		c.Listen = strings.Split(s.OpenFlowListen, ",")
	}
	if s.Controller != "" {
		c.Controllers = strings.Split(s.Controller, ",")
	}
	for _, text := range c.Listen {
		if _, _, err := ofconn.ParseListener(text); err != nil {
			return c, exit.Usagef("openflow-listen: %v", err)
		}
	}
	for _, text := range c.Controllers {
		if _, _, err := ofconn.ParseTarget(text, "tcp", "ssl"); err != nil {
			return c, exit.Usagef("controller: %v", err)
		}
	}
	var err error
	if s.DatapathID != "" {
		if c.DatapathID, err = strconv.ParseUint(s.DatapathID, 16, 64); err != nil || c.DatapathID == 0 {
			return c, exit.Usagef("datapath-id: %s: expected up to 16 hexadecimal digits, not all 0", s.DatapathID)
		}
	}
	switch {
	case s.FailMode != "" && s.FailMode != secure && s.FailMode != standalone:
		return c, exit.Usagef("fail-mode: %s: expected secure or standalone", s.FailMode)
	case len(c.Controllers) > ofconn.MaxControllers:
		return c, exit.Usagef("controller: expected at most %d", ofconn.MaxControllers)
	case len(c.Socket) > 107:
		return c, exit.Usagef("openflow-socket %s: expected a path of at most 107 bytes", c.Socket)
	}
	return c, nil
}

// parseVsockAllow parses the setting that gives roles to peers with a vsock CID: words of the form
// CID=ROLE, separated by commas.
func parseVsockAllow(text string) (map[uint32]access.Role, error) {
	allow := map[uint32]access.Role{}
	if text == "" {
		return allow, nil
	}
	for _, word := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(word, "=")
		cid, err := strconv.ParseUint(name, 10, 32)
		role, ok := access.ParseRole(value)
		_, twice := allow[uint32(cid)]
		if err != nil || !ok || twice {
			return nil, exit.Usagef("vsock-allow: %s: expected CID=none, CID=read or CID=write, each CID once", word)
		}
		allow[uint32(cid)] = role
	}
	return allow, nil
}
