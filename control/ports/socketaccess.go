// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"os"
	"os/user"
	"regexp"
	"strconv"

	"weft/control/usererr"
	"weft/internal/privilege"
	"weft/vhost"
)

// accountName matches valid names of users and groups (useradd(8)), and their numbers.
var accountName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,31}\$?$`)

// account checks the form of a user's or group's name. It does not look the name up, because a port must
// survive a start at which the account does not exist.
func account(word string) string {
	if !accountName.MatchString(word) {
		return "a name or a number"
	}
	return ""
}

func permissionBits(word string) string {
	if n, err := strconv.ParseUint(word, 8, 32); err != nil || n > 0o777 {
		return "octal permission bits, as in 0660"
	}
	return ""
}

// socketAccess returns the owner, group and mode of the socket on which a port listens. If an account
// does not exist, the error names it.
func socketAccess(values map[string]string) (a vhost.SocketAccess, err error) {
	if word := values["socket-owner"]; word != "" {
		if u, err := user.Lookup(word); err == nil {
			word = u.Uid
		}
		if a.UID, err = accountNumber("socket-owner", word, "user"); err != nil {
			return a, err
		}
	}
	if word := values["socket-group"]; word != "" {
		if g, err := user.LookupGroup(word); err == nil {
			word = g.Gid
		}
		if a.GID, err = accountNumber("socket-group", word, "group"); err != nil {
			return a, err
		}
	}
	if n, err := strconv.ParseUint(values["socket-mode"], 8, 32); err == nil {
		mode := uint32(n)
		a.Mode = &mode
	}
	return a, nil
}

// givesAway reports whether this process needs CAP_CHOWN to give the socket to the requested owner or
// group.
func givesAway(a vhost.SocketAccess) bool {
	return a.UID != nil && *a.UID != os.Geteuid() || a.GID != nil && !privilege.Member(*a.GID)
}

func accountNumber(key, word, kind string) (*int, error) {
	n, err := strconv.ParseUint(word, 10, 31)
	if err != nil {
		return nil, usererr.Errorf("%s=%s: this machine has no such %s", key, word, kind)
	}
	number := int(n)
	return &number, nil
}

// checkSocketAccess refuses the options for a socket's owner, group and mode if the port only connects
// to a socket.
func checkSocketAccess(values map[string]string) error {
	for _, key := range []string{"socket-owner", "socket-group", "socket-mode"} {
		if word, given := values[key]; given && values["mode"] == "client" {
			return usererr.Errorf("%s=%s: expected mode=server, in which the switch makes the socket", key, word)
		}
	}
	return nil
}
