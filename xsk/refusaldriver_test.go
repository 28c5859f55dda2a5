// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// For a known driver, one line explains the errno. For other drivers, the text depends on the step of
// Setup that failed.
func TestDriversHaveWords(t *testing.T) {
	for _, c := range []struct {
		failed step
		mode   string
		driver string
		errno  unix.Errno
		words  []string
	}{
		{stepAttach, ModeZeroCopy, "ixgbe", unix.EINVAL, []string{"virtual functions", "sriov_numvfs", "DCB", "lro off", "1500"}},
		{stepAttach, ModeZeroCopy, "ixgbe", unix.ENOMEM, []string{"128 processors"}},
		{stepAttach, ModeZeroCopy, "igb", unix.EINVAL, []string{"MTU (1500)", "receive buffer"}},
		{stepBind, ModeZeroCopy, "igb", unix.EOPNOTSUPP, []string{"Linux 6.14"}},
		{stepBind, ModeZeroCopy, "other", unix.EOPNOTSUPP, []string{"no AF_XDP zero-copy"}},
		{stepBind, ModeZeroCopy, "virtio_net", unix.EINVAL, []string{"VIRTIO_F_ACCESS_PLATFORM", "iommu_platform=on"}},
	} {
		name := fmt.Sprint(c.driver, " ", c.failed.words(3), " ", c.errno)
		n := &netdev{name: "nic0", index: 1, mtu: 1500, driver: c.driver, rx: 4, tx: 4}
		err := explain(c.failed, c.mode, n, 3, fmt.Errorf("wrapped: %w", c.errno))
		for _, w := range append(c.words, c.errno.Error()) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", name, err, w)
			}
		}
		if !errors.Is(err, c.errno) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q", name, err)
		}
	}
}
