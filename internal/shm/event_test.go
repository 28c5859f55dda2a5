// SPDX-License-Identifier: Apache-2.0

package shm

import "golang.org/x/sys/unix"

func readEvent(fd int, buf []byte) (int, error) { return unix.Read(fd, buf) }
