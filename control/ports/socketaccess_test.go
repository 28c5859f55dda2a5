// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"
	"testing"
)

// Names of owners and groups become numbers. A port that connects to a socket, instead of listening, has
// no owner and no group.
func TestSocketAccess(t *testing.T) {
	a, err := socketAccess(map[string]string{"socket-owner": "root", "socket-group": "7", "socket-mode": "0660"})
	if err != nil || a.UID == nil || *a.UID != 0 || a.GID == nil || *a.GID != 7 || a.Mode == nil || *a.Mode != 0o660 {
		t.Errorf("%+v, %v", a, err)
	}
	for _, key := range []string{"socket-owner", "socket-group"} {
		if _, err := socketAccess(map[string]string{key: "nosuchaccount"}); err == nil || !strings.Contains(err.Error(), key+"=nosuchaccount") {
			t.Errorf("an account that does not exist: %v", err)
		}
	}
	if a, err := socketAccess(map[string]string{"mode": "server"}); err != nil || a.UID != nil || a.GID != nil || a.Mode != nil {
		t.Errorf("without options: %+v", a)
	}
	err = checkSocketAccess(map[string]string{"mode": "client", "socket-mode": "0660"})
	if err == nil || !strings.Contains(err.Error(), "socket-mode=0660: expected mode=server") {
		t.Errorf("a port that connects: %v", err)
	}
	if err := checkSocketAccess(map[string]string{"mode": "server", "socket-mode": "0660"}); err != nil {
		t.Error(err)
	}
}
