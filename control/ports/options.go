// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"net/netip"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft/control/usererr"
)

// option describes one option of a kind of port. The function check returns "" for a valid value,
// otherwise a description of valid values.
type option struct {
	required bool
	value    string // default; "": no default
	check    func(string) (expected string)
}

// optionTable has the options of one kind of port, by name.
type optionTable map[string]option

// portName matches valid names of ports. No valid name looks like a port number.
var portName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.+-]{0,62}$`)

// reservedNames are the words that stand for reserved ports in flows.
var reservedNames = []string{
	"in_port", "table", "normal", "flood", "all", "controller", "local", "none", "any", "drop",
}

func checkPortName(name string) error {
	if !portName.MatchString(name) {
		return usererr.Errorf("port name %q: expected a letter, then up to 62 letters, digits, or any of _ . - +", name)
	}
	for _, word := range reservedNames {
		if strings.EqualFold(name, word) {
			return usererr.Errorf("port name %q: is a word of the flow syntax; expected another", name)
		}
	}
	return nil
}

// parseOptions checks a port's options, which are words of the form KEY=VALUE. The word type=
// selects the kind of port, and the table of its options. The map "values" includes default values;
// the map "explicit" does not.
func parseOptions(words []string) (kind string, values, explicit map[string]string, err error) {
	explicit = map[string]string{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "" {
			return "", nil, nil, usererr.Errorf("%s: expected KEY=VALUE, as in type=tap", word)
		}
		if _, twice := explicit[key]; twice {
			return "", nil, nil, usererr.Errorf("%s: option %s is given twice", word, key)
		}
		explicit[key] = value
	}
	kind, ok := explicit["type"]
	if !ok {
		return "", nil, nil, usererr.Errorf("type= is missing; expected type=%s", strings.Join(kindNames(), "|"))
	}
	k, ok := portKinds[kind]
	if !ok {
		return "", nil, nil, usererr.Errorf("type=%s: expected one of %s", kind, strings.Join(kindNames(), ", "))
	}
	values, err = k.allOptions().check(kind, words)
	return kind, values, explicit, err
}

// ovsOptions maps options of Open vSwitch's interfaces to Weft's options for the same purpose, for error
// messages.
var ovsOptions = map[string]string{
	"remote_ip": "remote", "local_ip": "local", "key": "vni", "in_key": "vni", "out_key": "vni", "csum": "udp_csum",
	"df_default": "df", "mtu_request": "mtu", "vhost-server-path": "path", "n_rxq": "queues", "mac_in_use": "mac",
	"exts": "gbp",
}

// check returns the values of the options, with defaults. It checks the words in their order, so that
// the error names the first wrong word.
func (t optionTable) check(kind string, words []string) (map[string]string, error) {
	values := map[string]string{"type": kind}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		if key == "type" {
			continue
		}
		row, known := t[key]
		if !known {
			ours := ovsOptions[key]
			if ours == "vni" && t[ours].check == nil {
				ours = "key" // the option key= of GRE
			}
			if ours != "" && t[ours].check != nil {
				return nil, usererr.Errorf("%s: type=%s has no option %s, which is Open vSwitch's; expected %s=", word, kind, key, ours)
			}
			return nil, usererr.Errorf("%s: type=%s has no option %s; expected one of %s", word, kind, key, strings.Join(t.names(), ", "))
		}
		if expected := row.check(value); expected != "" {
			return nil, usererr.Errorf("%s: expected %s", word, expected)
		}
		values[key] = value
	}
	for _, key := range t.names() {
		if _, have := values[key]; have {
			continue
		}
		if t[key].required {
			return nil, usererr.Errorf("%s= is missing; type=%s needs %s", key, kind, strings.Join(t.neededNames(), ", "))
		}
		if t[key].value != "" {
			values[key] = t[key].value
		}
	}
	return values, nil
}

func (t optionTable) names() []string {
	var names []string
	for name := range t {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (t optionTable) neededNames() []string {
	var names []string
	for _, name := range t.names() {
		if t[name].required {
			names = append(names, name+"=")
		}
	}
	return names
}

func oneOf(choices ...string) func(string) string {
	return func(value string) string {
		for _, c := range choices {
			if value == c {
				return ""
			}
		}
		return "one of " + strings.Join(choices, ", ")
	}
}

func numberIn(lo, hi int) func(string) string {
	return func(value string) string {
		if n, err := strconv.Atoi(value); err != nil || n < lo || n > hi {
			return fmt.Sprintf("a number from %d to %d", lo, hi)
		}
		return ""
	}
}

func wordOr(word string, check func(string) string) func(string) string {
	return func(value string) string {
		if value == word {
			return ""
		}
		if expected := check(value); expected != "" {
			return expected + ", or " + word
		}
		return ""
	}
}

func address(value string) string {
	addr, err := netip.ParseAddr(value)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() {
		return "a unicast IPv4 or IPv6 address"
	}
	return ""
}

func deviceName(value string) string {
	if value == "" || len(value) >= unix.IFNAMSIZ || value == "." || value == ".." || strings.ContainsAny(value, "/: \t\n") {
		return fmt.Sprintf("a network device's name of 1 to %d characters", unix.IFNAMSIZ-1)
	}
	return ""
}

func socketPath(value string) string {
	if !strings.HasPrefix(value, "/") || len(value) > 107 {
		return "the absolute path of a unix socket, at most 107 bytes"
	}
	return ""
}

func namespaceName(value string) string {
	if value == "" || strings.ContainsRune(value, 0) || (strings.Contains(value, "/") && !strings.HasPrefix(value, "/")) {
		return "the name of a network namespace, or an absolute path"
	}
	return ""
}
