// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// addressesFile is the file with the learned addresses. Its first line identifies the
// machine's boot.
const addressesFile = "addresses"

// mostAddressBytes limits the bytes of the file that LoadAddresses reads.
const mostAddressBytes = 64 << 20

// SaveAddresses replaces the saved addresses without waiting for the disk. A crash of
// the machine may lose the file, but the file is not used after a reboot anyway.
func (s *Store) SaveAddresses(data []byte) error {
	f, err := s.dir.OpenFile(addressesFile+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte(bootID()+"\n"), data...))
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.dir.Rename(addressesFile+".new", addressesFile)
	}
	return err
}

// LoadAddresses returns the data of the last SaveAddresses since the machine's boot,
// or nil.
func (s *Store) LoadAddresses() ([]byte, error) {
	// O_NONBLOCK makes a FIFO at this path look empty. Without it, the start would wait for a
	// writer of the FIFO.
	f, err := s.dir.OpenFile(addressesFile, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := io.ReadAll(io.LimitReader(f, mostAddressBytes))
	boot, data, _ := bytes.Cut(all, []byte("\n"))
	if err != nil || string(boot) != bootID() {
		return nil, err
	}
	return data, nil
}
